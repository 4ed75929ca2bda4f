#!/bin/sh
# Creates your own certificate authority and a server certificate for the SuperLink.
#
#   deploy/certificates.sh FOLDER NAME-OR-ADDRESS...
#   deploy/certificates.sh certificates superlink.example.org 192.0.2.10
#
# SuperNodes and operators connect to these names and addresses. localhost, 127.0.0.1 and
# ::1 are always added, because the SuperLink's own processes use them. If FOLDER already
# has an authority, it is used again: the same command renews the server certificate, and
# the nodes keep their ca.crt.
#
#   ca.crt      copy it to every SuperNode and operator; not a secret
#   server.pem  copy it to the SuperLink
#   server.key  copy it to the SuperLink; secret
#   ca.key      keep it here, or offline; secret: its owner can pose as the SuperLink
set -eu

CA_DAYS=3650
SERVER_DAYS=825

if [ $# -lt 2 ]; then
  echo "usage: $0 FOLDER NAME-OR-ADDRESS..." >&2
  exit 2
fi
folder=$1
shift

# The numbers of subject alternative names have no meaning, but they must differ.
names='DNS.1 = localhost
IP.1 = 127.0.0.1
IP.2 = ::1'
number=2
for name in "$@"; do
  number=$((number + 1))
  case $name in
    *://* | */*)
      echo "$0: $name: a name or an address, not a URL" >&2
      exit 2
      ;;
    *:*) kind=IP ;;                       # IPv6
    *[!0-9.]*) kind=DNS ;;
    *) kind=IP ;;
  esac
  names="$names
$kind.$number = $name"
done

umask 077
mkdir -p "$folder"
cd "$folder"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

cat >"$work/openssl.cnf" <<CONFIG
[req]
prompt = no
distinguished_name = subject
[subject]
O = FLFA
CN = \${ENV::COMMON_NAME}
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = @names
[names]
$names
CONFIG

new_key() {
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out "$1"
}

if [ ! -e ca.key ] || [ ! -e ca.crt ]; then
  if [ -e ca.key ] || [ -e ca.crt ]; then
    echo "$0: $folder has one of ca.key and ca.crt; both are needed, or none" >&2
    exit 1
  fi
  export COMMON_NAME='FLFA certificate authority'
  new_key "$work/ca.key"
  openssl req -new -x509 -sha384 -days $CA_DAYS -key "$work/ca.key" \
    -config "$work/openssl.cnf" -extensions authority -out "$work/ca.crt"
  mv "$work/ca.key" "$work/ca.crt" .
fi

export COMMON_NAME='FLFA SuperLink'
new_key "$work/server.key"
openssl req -new -sha384 -key "$work/server.key" -config "$work/openssl.cnf" \
  -out "$work/server.csr"
openssl x509 -req -sha384 -days $SERVER_DAYS -in "$work/server.csr" \
  -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" \
  -extfile "$work/openssl.cnf" -extensions server -out "$work/server.pem" \
  2>"$work/log" || { cat "$work/log" >&2; exit 1; }   # it also writes to stderr on success
openssl verify -x509_strict -CAfile ca.crt "$work/server.pem" >/dev/null
# Replace both together: a certificate works only with its own key.
mv "$work/server.key" "$work/server.pem" .
chmod 644 ca.crt server.pem

echo "$folder: ca.crt, ca.key, server.pem, server.key for localhost, 127.0.0.1, ::1, $*"
