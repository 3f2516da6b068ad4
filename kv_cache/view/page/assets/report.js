/* Draws the charts of a report with uPlot. All it knows stands in the element #data; all text is set
   as text, never as markup. */
(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent);
  var root = document.documentElement;
  var DENSE = 400, GROUPS = 120;
  var HEIGHT = 240, PRINTED = [335, 200];
  var printing = false;

  /* Paper shows more than a screen does: there charts are drawn twice as large, and shown at half
     their size (report.css). */
  function fine() { return printing ? 2 : 1; }

  /* Pixels of the canvas in what is a pixel of the page. */
  function sharp() { return uPlot.pxRatio * fine(); }

  function colour(name) {
    return getComputedStyle(root).getPropertyValue("--" + name).trim();
  }

  // --- numbers ------------------------------------------------------------------------------

  function figures(value) {
    if (value === null || value === undefined) return "–";
    var size = Math.abs(value);
    if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    return String(Number(value.toPrecision(4)));
  }

  function two(value) { return (value < 10 ? "0" : "") + value; }

  /* `finest` is the distance between neighbours: below a second, seconds have digits. */
  function clock(seconds, finest) {
    if (finest < 1 && seconds < 3600) return figures(seconds) + " s";
    var whole = Math.round(seconds);
    var h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60, s = whole % 60;
    return h ? h + ":" + two(m) + ":" + two(s) : m + ":" + two(s);
  }

  function percentile(place) {
    var nines = Math.pow(10, 2 - place);
    return "p" + Number((100 - nines).toFixed(place < 2 ? 0 : place < 3 ? 1 : 2));
  }

  /* Steps of an axis on which things are counted. */
  var WHOLE = [];
  for (var power = 0; power < 16; power++)
    [1, 2, 5].forEach(function (step) { WHOLE.push(step * Math.pow(10, power)); });

  /* Numbers that people count in, on a logarithmic axis. */
  function rounds(low, high, most) {
    var ways = data.ladders;
    for (var i = 0; i < ways.length; i++) {
      var found = [];
      for (var p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
        ways[i].forEach(function (step) {
          var value = Number((step * Math.pow(10, p)).toPrecision(6));
          if (value >= low && value <= high) found.push(value);
        });
      if (found.length <= most) return found;
    }
    var each = Math.ceil(found.length / most);
    return found.filter(function (_, index) { return index % each === 0; });
  }

  // --- a chart ------------------------------------------------------------------------------

  function Chart(box) {
    this.box = box;
    this.spec = data.charts[Number(box.dataset.chart)];
    this.axis = data.axes[this.spec.axis];
    this.hidden = this.spec.lines.map(function () { return false; });
    this.keys = box.parentNode.querySelector(".keys");
    this.readout = box.parentNode.querySelector(".readout");
    this.plot = null;
    this.zoomed = false;
    this.legend();
    this.listen();
  }

  Chart.prototype.at = function (place) {
    if (this.axis.kind === "percentile") return percentile(place);
    if (this.axis.kind === "time") {
      var places = this.axis.places;
      return clock(place, places.length > 1 ? places[1] - places[0] : 1);
    }
    return figures(place);
  };

  Chart.prototype.legend = function () {
    var self = this;
    this.values = this.spec.lines.map(function (line, index) {
      var button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.appendChild(swatch(line));
      button.appendChild(document.createTextNode(line.name));
      var value = document.createElement("span");
      value.className = "value";
      button.appendChild(value);
      button.addEventListener("click", function () {
        self.hidden[index] = !self.hidden[index];
        button.setAttribute("aria-pressed", String(!self.hidden[index]));
        if (self.plot) self.plot.setSeries(index + 1, { show: !self.hidden[index] });
      });
      self.keys.appendChild(button);
      return value;
    });
    this.whole = document.createElement("button");
    this.whole.type = "button";
    this.whole.className = "whole";
    this.whole.hidden = true;
    this.whole.textContent = "Show everything";
    this.whole.addEventListener("click", function () { self.range(null); });
    this.keys.appendChild(this.whole);
  };

  function swatch(line) {
    var space = "http://www.w3.org/2000/svg";
    var svg = document.createElementNS(space, "svg"), mark = document.createElementNS(space, "line");
    svg.setAttribute("viewBox", "0 0 27 10");
    svg.setAttribute("aria-hidden", "true");
    [["x1", 1], ["x2", 26], ["y1", 5], ["y2", 5], ["class", "k" + line.look]].forEach(function (pair) {
      mark.setAttribute(pair[0], pair[1]);
    });
    if (line.dash) mark.setAttribute("stroke-dasharray", line.dash);
    svg.appendChild(mark);
    return svg;
  }

  Chart.prototype.draw = function () {
    if (this.plot) this.plot.destroy();
    var width = printing ? PRINTED[0] * fine() : Math.max(200, this.box.clientWidth);
    var values = this.spec.lines.map(function (line) { return line.values; });
    this.plot = new uPlot(this.options(width), [this.axis.places].concat(values), this.box);
    this.zoomed = false;
    this.whole.hidden = true;
  };

  Chart.prototype.options = function (width) {
    var self = this, spec = this.spec, soft = colour("soft"), grid = colour("grid");
    var n = fine(), font = 12 * n + "px " + getComputedStyle(document.body).fontFamily;
    var axis = {
      stroke: soft, font: font, grid: { stroke: grid, width: n }, ticks: { stroke: grid, width: n, size: 4 * n },
      labelSize: 18 * n, labelFont: font, labelGap: 0, gap: 4 * n,
    };
    var places = this.axis.places, first = places[0], last = places[places.length - 1];
    if (this.axis.kind === "time") {
      var bands = this.axis.bands;
      first = Math.min(first, bands.length ? bands[0][1] : 0);
      if (bands.length) last = Math.max(last, bands[bands.length - 1][2]);
    }
    if (this.axis.kind === "percentile") { first = 0; last = 4; }
    if (this.axis.kind === "log") { first /= 1.15; last *= 1.15; }
    if (this.axis.kind === "linear") {
      var room = (last - first) * 0.04 || Math.abs(first) * 0.1 || 1;
      first -= room; last += room;
    }
    if (!(last > first)) { first -= 0.5; last += 0.5; }
    this.ends = [first, last];
    return {
      width: width,
      height: printing ? PRINTED[1] * n : HEIGHT,
      padding: [10 * n, 28 * n, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, distr: this.axis.kind === "log" ? 3 : 1, range: function (_, low, high) { return self.zoomed ? [low, high] : [first, last]; } },
        y: { distr: spec.log ? 3 : 1, range: function (u) { return self.heights(u); } },
      },
      axes: [
        Object.assign({}, axis, this.across(), { size: 28 * n, label: this.axis.label }),
        Object.assign({}, axis, this.up(), { size: 52 * n, label: spec.unit }),
      ],
      series: [{}].concat(spec.lines.map(function (line, index) { return self.line(line, index); })),
      cursor: {
        y: false,
        points: { size: 8 },
        drag: { x: true, y: false, setScale: false },
        sync: this.axis.kind === "time" ? { key: spec.axis, setSeries: false, scales: ["x", null] } : undefined,
      },
      hooks: {
        drawClear: [function (u) { self.shade(u); }],
        draw: [function (u) { self.over(u); }],
        setCursor: [function (u) { self.tell(u.cursor.idx); }],
        setSelect: [function (u) { self.select(u); }],
      },
    };
  };

  Chart.prototype.line = function (line, index) {
    var self = this, stroke = colour("c" + line.look), spec = this.spec;
    var few = line.values.length <= 90;
    var options = {
      label: line.name,
      show: !this.hidden[index],
      stroke: function (u) { return self.dense(u) ? faint(stroke) : stroke; },
      width: (line.values.length > DENSE ? 1 : 1.6) * fine(),
      dash: line.dash && line.values.length <= DENSE ? dashes(line, fine()) : undefined,
      points: {
        show: few && this.axis.kind !== "percentile",
        size: 5 * fine(), stroke: stroke, fill: stroke, width: 1,
        filter: function (u, _, show) { return show || self.dense(u) ? null : alone(line.values); },
      },
    };
    if (spec.steps) options.paths = uPlot.paths.stepped({ align: 1 });
    if (line.through) {
      options.points.show = false;
      options.points.filter = function () { return null; };
      options.paths = function () { return null; };
    }
    return options;
  };

  function dashes(line, ratio) {
    return line.dash ? line.dash.split(" ").map(function (n) { return n * ratio; }) : [];
  }

  function faint(hex) { return hex + "55"; }

  /* Whether more points are in sight than can be told apart; then they stand faintly behind lines
     through what they are in the middle. */
  Chart.prototype.dense = function (u) {
    if (this.axis.kind !== "time" || this.axis.places.length <= DENSE) return false;
    var seen = this.seen(u);
    return seen[1] - seen[0] > DENSE;
  };

  /* The first point in sight, and the one after the last. */
  Chart.prototype.seen = function (u) {
    var places = this.axis.places, low = u.scales.x.min, high = u.scales.x.max, from = 0, to = places.length;
    while (from < to && places[from] < low) from++;
    while (to > from && places[to - 1] > high) to--;
    return [from, to];
  };

  /* Points without neighbours, of which a line would show nothing. */
  function alone(values) {
    var found = [];
    for (var i = 0; i < values.length; i++)
      if (values[i] != null && values[i - 1] == null && values[i + 1] == null) found.push(i);
    return found.length ? found : null;
  }

  Chart.prototype.across = function () {
    var self = this;
    if (this.axis.kind === "percentile")
      return {
        splits: function () { return [Math.log10(2), 1, 2, 3, 4]; },
        values: function (_, splits) { return splits.map(percentile); },
      };
    if (this.axis.kind === "time")
      return {
        space: 64 * fine(),
        incrs: [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400],
        values: function (_, splits, __, ___, step) { return splits.map(function (at) { return clock(at, step); }); },
      };
    if (this.axis.kind === "log")
      return {
        splits: function (_, __, low, high) { return rounds(low, high, 7); },
        filter: function (_, splits) { return splits; },
        values: function (_, splits) { return splits.map(figures); },
      };
    return {
      space: 50 * fine(),
      incrs: this.axis.whole ? WHOLE : undefined,
      values: function (_, splits) { return splits.map(figures); },
    };
  };

  Chart.prototype.up = function () {
    if (!this.spec.log)
      return { space: 34 * fine(), values: function (_, splits) { return splits.map(figures); } };
    return {
      splits: function (_, __, low, high) { return rounds(low, high, 7); },
      filter: function (_, splits) { return splits; },
      values: function (_, splits) { return splits.map(figures); },
    };
  };

  /* The ends of the vertical axis: of what is shown, and of what must be in sight. */
  Chart.prototype.heights = function (u) {
    var log = this.spec.log, low = Infinity, high = this.spec.most || 0;
    var from = u.scales.x.min, to = u.scales.x.max, places = this.axis.places, hidden = this.hidden;
    if (!this.zoomed) { from = this.ends[0]; to = this.ends[1]; }
    function see(value) {
      if (value === null || (log && value <= 0)) return;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    this.spec.lines.forEach(function (line, index) {
      if (hidden[index]) return;
      for (var i = 0; i < places.length; i++)
        if (!(places[i] < from || places[i] > to)) {
          see(line.values[i]);
          if (line.spans && line.spans[i]) line.spans[i].forEach(see);
        }
    });
    this.spec.limits.forEach(function (limit) { see(limit.value); });
    if (!(high > 0)) return log ? [0.1, 10] : [0, 1];
    if (!log && !this.spec.zero && low < high) return [Math.max(0, low - (high - low) * 0.08), high + (high - low) * 0.08];
    if (!log) return [0, high * 1.08];
    if (!(low < Infinity)) low = high / 10;
    var room = high / low < 4 ? 2 : 1.25; // that an axis has more than one number
    return [low / room, high * room];
  };

  // --- what is drawn beside the lines -------------------------------------------------------

  Chart.prototype.shade = function (u) {
    var ctx = u.ctx, box = u.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(box.left, box.top, box.width, box.height);
    ctx.clip();
    ctx.fillStyle = colour("shade");
    this.axis.bands.forEach(function (band) {
      if (!band[3]) return;
      var start = u.valToPos(band[1], "x", true), end = u.valToPos(band[2], "x", true);
      ctx.fillRect(start, box.top, end - start, box.height);
    });
    ctx.restore();
  };

  Chart.prototype.over = function (u) {
    var ctx = u.ctx, box = u.bbox, ratio = sharp(), spec = this.spec, self = this;
    ctx.save();
    ctx.beginPath();
    ctx.rect(box.left, 0, box.width, box.top + box.height);
    ctx.clip();
    ctx.font = 11 * ratio + "px " + getComputedStyle(document.body).fontFamily;
    ctx.textBaseline = "bottom";
    spec.marks.forEach(function (mark) {
      var x = u.valToPos(mark[1], "x", true), right = x > box.left + box.width / 2;
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = ratio;
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, box.top);
      ctx.lineTo(x, box.top + box.height);
      ctx.stroke();
      ctx.textAlign = right ? "right" : "left";
      write(ctx, mark[0], x + (right ? -4 : 4) * ratio, box.top + box.height - 4 * ratio, colour("ink"));
    });
    spec.limits.forEach(function (limit) {
      var y = u.valToPos(limit.value, "y", true);
      ctx.strokeStyle = colour("c" + limit.look);
      ctx.lineWidth = ratio;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(box.left, y);
      ctx.lineTo(box.left + box.width, y);
      ctx.stroke();
      ctx.textAlign = "right";
      write(ctx, limit.name, box.left + box.width - 4 * ratio, y - 2 * ratio, colour("c" + limit.look));
    });
    spec.lines.forEach(function (line, index) {
      if (self.hidden[index]) return;
      if (self.dense(u)) self.middle(u, line);
      if (line.spans) self.spans(u, line);
      if (!line.through) return;
      self.join(u, line);
      self.dots(u, line);
    });
    if (spec.names.length && !this.hidden[0]) this.name(u);
    ctx.restore();
  };

  /* Names above the first line's points, but for those that would cover another. */
  Chart.prototype.name = function (u) {
    var ctx = u.ctx, ratio = sharp(), places = this.axis.places, names = this.spec.names;
    var taken = [];
    ctx.textAlign = "center";
    this.spec.lines[0].values.forEach(function (value, index) {
      if (value === null) return;
      var x = u.valToPos(places[index], "x", true), y = u.valToPos(value, "y", true) - 6 * ratio;
      var half = ctx.measureText(names[index]).width / 2 + 2 * ratio, tall = 14 * ratio;
      var free = taken.every(function (other) {
        return Math.abs(other.x - x) > other.half + half || Math.abs(other.y - y) > tall;
      });
      if (!free) return;
      taken.push({ x: x, y: y, half: half });
      write(ctx, names[index], x, y, colour("ink"));
    });
  };

  function write(ctx, text, x, y, ink) {
    ctx.strokeStyle = colour("page");
    ctx.lineWidth = 3 * sharp();
    ctx.setLineDash([]);
    ctx.strokeText(text, x, y);
    ctx.fillStyle = ink;
    ctx.fillText(text, x, y);
  }

  /* A line through the medians of groups of neighbours. */
  Chart.prototype.middle = function (u, line) {
    var ctx = u.ctx, ratio = sharp(), places = this.axis.places, seen = this.seen(u), begun = false;
    var each = Math.ceil((seen[1] - seen[0]) / GROUPS);
    ctx.strokeStyle = colour("c" + line.look);
    ctx.lineWidth = 2 * ratio;
    ctx.setLineDash(dashes(line, ratio));
    ctx.beginPath();
    for (var i = seen[0]; i < seen[1]; i += each) {
      var end = Math.min(seen[1], i + each);
      var some = line.values.slice(i, end).filter(function (v) { return v !== null; }).sort(function (a, b) { return a - b; });
      if (!some.length) { begun = false; continue; }
      var x = u.valToPos((places[i] + places[end - 1]) / 2, "x", true);
      var y = u.valToPos(some[Math.floor(some.length / 2)], "y", true);
      if (begun) ctx.lineTo(x, y); else ctx.moveTo(x, y);
      begun = true;
    }
    ctx.stroke();
  };

  /* A line through places of its own. */
  Chart.prototype.join = function (u, line) {
    var ctx = u.ctx, ratio = sharp();
    ctx.strokeStyle = colour("c" + line.look);
    ctx.lineWidth = 1.6 * ratio;
    ctx.setLineDash(dashes(line, ratio));
    ctx.beginPath();
    line.through.forEach(function (place, index) {
      var x = u.valToPos(place[0], "x", true), y = u.valToPos(place[1], "y", true);
      if (index) ctx.lineTo(x, y); else ctx.moveTo(x, y);
    });
    ctx.stroke();
  };

  /* An interval of a point: a bar with ends. */
  Chart.prototype.spans = function (u, line) {
    var ctx = u.ctx, ratio = sharp(), places = this.axis.places;
    ctx.strokeStyle = colour("c" + line.look);
    ctx.lineWidth = ratio;
    ctx.setLineDash([]);
    ctx.beginPath();
    line.spans.forEach(function (ends, index) {
      if (!ends) return;
      var x = u.valToPos(places[index], "x", true);
      var ys = ends.map(function (end) { return u.valToPos(end, "y", true); });
      ctx.moveTo(x, ys[0]);
      ctx.lineTo(x, ys[1]);
      ys.forEach(function (y) {
        ctx.moveTo(x - 4 * ratio, y);
        ctx.lineTo(x + 4 * ratio, y);
      });
    });
    ctx.stroke();
  };

  Chart.prototype.dots = function (u, line) {
    var ctx = u.ctx, ratio = sharp(), places = this.axis.places;
    ctx.setLineDash([]);
    line.values.forEach(function (value, index) {
      if (value === null) return;
      ctx.beginPath();
      ctx.arc(u.valToPos(places[index], "x", true), u.valToPos(value, "y", true), 3.4 * ratio, 0, 2 * Math.PI);
      ctx.fillStyle = line.hollow.indexOf(index) < 0 ? colour("c" + line.look) : colour("page");
      ctx.fill();
      ctx.strokeStyle = colour("c" + line.look);
      ctx.lineWidth = 1.5 * ratio;
      ctx.stroke();
    });
  };

  // --- reading and zooming ------------------------------------------------------------------

  Chart.prototype.tell = function (index) {
    var self = this, there = index !== null && index !== undefined;
    this.values.forEach(function (value, line) {
      value.textContent = there ? figures(self.spec.lines[line].values[index]) : "";
    });
    this.keys.dataset.at = there ? this.at(this.axis.places[index]) : "";
  };

  Chart.prototype.say = function (index) {
    var parts = this.spec.lines.map(function (line) {
      return line.name + " " + figures(line.values[index]);
    });
    this.readout.textContent = this.at(this.axis.places[index]) + ": " + parts.join(", ") + " " + this.spec.unit;
  };

  Chart.prototype.listen = function () {
    var self = this;
    this.box.addEventListener("keydown", function (event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (!self.plot) self.draw();
      var last = self.axis.places.length - 1, now = self.plot.cursor.idx;
      var step = event.shiftKey ? Math.max(1, Math.round(last / 20)) : 1;
      var to = { ArrowLeft: (now == null ? last + step : now) - step, ArrowRight: (now == null ? -step : now) + step, Home: 0, End: last }[event.key];
      if (to !== undefined) self.move(Math.max(0, Math.min(last, to)));
      else if (event.key === "+" || event.key === "=") self.zoom(0.5);
      else if (event.key === "-") self.zoom(2);
      else if (event.key === "0" || event.key === "Escape") self.range(null);
      else return;
      event.preventDefault();
    });
    this.box.addEventListener("dblclick", function () { self.range(null); });
  };

  Chart.prototype.move = function (index) {
    var plot = this.plot, x = this.axis.places[index], scale = plot.scales.x;
    if (x < scale.min || x > scale.max) {
      var half = (scale.max - scale.min) / 2;
      this.range([x - half, x + half]);
    }
    plot.setCursor({ left: plot.valToPos(x, "x"), top: plot.over.clientHeight / 2 });
    this.tell(index);
    this.say(index);
  };

  Chart.prototype.zoom = function (factor) {
    var scale = this.plot.scales.x, now = this.plot.cursor.idx;
    var middle = now == null ? (scale.min + scale.max) / 2 : this.axis.places[now];
    var half = (scale.max - scale.min) * factor / 2;
    this.range([middle - half, middle + half]);
  };

  Chart.prototype.select = function (u) {
    if (u.select.width < 4) return;
    var ends = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.range(ends);
  };

  /* All charts over the same time show the same part of it. */
  Chart.prototype.range = function (ends) {
    var axis = this.spec.axis, own = this;
    charts.forEach(function (chart) {
      if (chart === own || (own.axis.kind === "time" && chart.spec.axis === axis)) chart.show(ends);
    });
  };

  Chart.prototype.show = function (ends) {
    var low = this.ends ? this.ends[0] : 0, high = this.ends ? this.ends[1] : 1;
    if (!this.plot) return;
    var from = ends ? Math.max(low, ends[0]) : low, to = ends ? Math.min(high, ends[1]) : high;
    if (!(to - from > (high - low) * 1e-4)) return;
    this.zoomed = from > low || to < high;
    this.whole.hidden = !this.zoomed;
    this.plot.setScale("x", { min: from, max: to });
  };

  // --- all of them --------------------------------------------------------------------------

  var charts = Array.prototype.map.call(document.querySelectorAll(".plot"), function (box) {
    return new Chart(box);
  });

  function again() {
    charts.forEach(function (chart) { if (chart.plot) chart.draw(); });
  }

  if (window.IntersectionObserver) {
    var watch = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        if (!entry.isIntersecting) return;
        watch.unobserve(entry.target);
        charts.forEach(function (chart) { if (chart.box === entry.target && !chart.plot) chart.draw(); });
      });
    }, { rootMargin: "800px 0px" });
    charts.forEach(function (chart) { watch.observe(chart.box); });
  } else charts.forEach(function (chart) { chart.draw(); });

  var waiting = 0;
  window.addEventListener("resize", function () {
    clearTimeout(waiting);
    waiting = setTimeout(function () {
      charts.forEach(function (chart) {
        var width = Math.max(200, chart.box.clientWidth);
        if (chart.plot && !printing && chart.plot.width !== width) chart.plot.setSize({ width: width, height: HEIGHT });
      });
    }, 100);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("beforeprint", function () {
    printing = true;
    root.classList.add("printing");
    charts.forEach(function (chart) { chart.draw(); });
  });
  window.addEventListener("afterprint", function () {
    printing = false;
    root.classList.remove("printing");
    again();
  });
})();
