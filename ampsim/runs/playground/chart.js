// A chart on a canvas: steps to the right, powers of two upwards. It draws axes and marks in the page's colors.
"use strict";

const MARGIN = { left: 62, right: 10, top: 8, bottom: 38 };
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function powerOfTwo(exponent) {
  return "2" + [...String(exponent)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻").join("");
}

// The multiples of a round number from low to high, at most `count` of them.
function ticks(low, high, count) {
  const roughly = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(roughly));
  const apart = Math.max(1, unit * [1, 2, 5, 10].find((factor) => unit * factor >= roughly));
  const marks = [];
  for (let mark = Math.ceil(low / apart) * apart; mark <= high; mark += apart) marks.push(mark);
  return marks;
}

class Chart {
  constructor(canvas, label) {
    Object.assign(this, { canvas, label, context: canvas.getContext("2d") });
  }

  // Clear the canvas and draw axes: 0 to `steps`, 2^low to 2^high.
  begin(steps, low, high) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    Object.assign(this, { steps, low, high });
    this.right = width - MARGIN.right;
    this.bottom = height - MARGIN.bottom;
    this.canvas.width = Math.round(width * devicePixelRatio);
    this.canvas.height = Math.round(height * devicePixelRatio);
    this.context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    this.context.font = FONT;
    this.axes();
  }

  x(step) {
    return MARGIN.left + (step / this.steps) * (this.right - MARGIN.left);
  }

  y(exponent) {
    return this.bottom - ((exponent - this.low) / (this.high - this.low)) * (this.bottom - MARGIN.top);
  }

  stepAt(event) {
    const share = (event.offsetX - MARGIN.left) / (this.right - MARGIN.left);
    return Math.min(this.steps - 1, Math.max(0, Math.floor(share * this.steps)));
  }

  axes() {
    const { context, right, bottom } = this;
    context.fillStyle = color("faint");
    context.strokeStyle = color("grid");
    context.textAlign = "center";
    for (const step of ticks(0, this.steps, (right - MARGIN.left) / 80)) {
      context.fillText(step.toLocaleString("en"), this.x(step), bottom + 16);
    }
    context.fillText("step", (MARGIN.left + right) / 2, bottom + 33);
    context.textAlign = "right";
    for (const exponent of ticks(this.low, this.high, (bottom - MARGIN.top) / 28)) {
      context.fillText(powerOfTwo(exponent), MARGIN.left - 8, this.y(exponent) + 4);
      context.strokeRect(MARGIN.left, this.y(exponent), right - MARGIN.left, 0);
    }
    context.save();
    context.translate(14, (MARGIN.top + bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(this.label, 0, 0);
    context.restore();
  }

  // Call `paint`, clipped to the axes.
  inside(paint) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(MARGIN.left, MARGIN.top, this.right - MARGIN.left, this.bottom - MARGIN.top);
    context.clip();
    paint(context);
    context.restore();
  }

  // Fill from step `from` to step `to` and from 2^low to 2^high, on whole pixels so that no seams show.
  box(from, to, low, high) {
    const [left, right] = [from, to].map((step) => Math.round(this.x(step)));
    const [top, bottom] = [high, Math.max(low, this.low)].map((exponent) => Math.round(this.y(exponent)));
    this.context.fillRect(left, top, right - left, bottom - top);
  }

  // Draw a line through a level for each step.
  steppedLine(exponents, name, dash) {
    this.inside((context) => {
      context.strokeStyle = color(name);
      context.lineWidth = 1.75;
      context.setLineDash(dash);
      context.beginPath();
      exponents.forEach((exponent, step) => {
        context.lineTo(this.x(step), this.y(exponent));
        context.lineTo(this.x(step + 1), this.y(exponent));
      });
      context.stroke();
    });
  }

  // Mark a step by a vertical stroke: of the whole height, or of a part below the top.
  mark(step, name, width, top = 0, height = this.bottom - MARGIN.top) {
    this.inside((context) => {
      context.fillStyle = color(name);
      context.fillRect(this.x(step + 0.5) - width / 2, MARGIN.top + top, width, height);
    });
  }
}
