"use strict";
(function () {
  var form = document.getElementById("filters");
  if (!form) { return; }
  var boxes = Array.from(form.querySelectorAll("input[data-axis]"));
  var metric = document.getElementById("metric");
  var axes = Array.from(new Set(boxes.map(function (box) { return box.dataset.axis; })));
  var selector = axes.map(function (axis) { return "[data-axis-" + axis + "]"; });
  var filtered = Array.from(document.querySelectorAll(selector.concat("[data-metric]").join(",")));

  function apply() {
    var off = new Set();
    boxes.forEach(function (box) {
      if (!box.checked) { off.add(box.dataset.axis + " " + box.value); }
    });
    filtered.forEach(function (element) {
      var hide = axes.some(function (axis) {
        return off.has(axis + " " + element.getAttribute("data-axis-" + axis));
      });
      var shown = element.getAttribute("data-metric");
      if (metric && metric.value && shown && shown !== metric.value) { hide = true; }
      element.classList.toggle("off", hide);
    });
    var none = axes.some(function (axis) {
      return boxes.every(function (box) { return box.dataset.axis !== axis || !box.checked; });
    });
    document.getElementById("nothing").classList.toggle("off", !none);
  }

  form.hidden = false;
  form.addEventListener("change", apply);
  form.addEventListener("reset", function () { setTimeout(apply, 0); });
  // A reloaded page may keep the boxes that were cleared before.
  apply();
}());
