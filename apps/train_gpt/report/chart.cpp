// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace thinwire::train_gpt {
namespace {

// All lengths in the units of the SVG's view box.
constexpr double kWidth = 560;
constexpr double kHeight = 320;
constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kTop = 24;
constexpr double kBottom = 46;
constexpr double kDotRadius = 3.5;
constexpr double kStripHeight = 5;
constexpr double kStripGap = 2;
constexpr std::size_t kMostPoints = 600;  // More cannot be told apart.

// From values of one axis to a coordinate.
class Scale {
 public:
  Scale(const Axis& axis, double low, double high, double from, double to)
      : logarithmic_(axis.logarithmic),
        low_(map(low)),
        high_(map(high)),
        from_(from),
        to_(to) {}

  double operator()(double value) const {
    return from_ + (map(value) - low_) / (high_ - low_) * (to_ - from_);
  }

 private:
  double map(double value) const {
    return logarithmic_ ? std::log10(value) : value;
  }

  bool logarithmic_;
  double low_;
  double high_;
  double from_;
  double to_;
};

bool shown(const Chart& chart, const Point& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) &&
         point.x <= chart.x.most && point.y <= chart.y.most &&
         (!chart.x.logarithmic || point.x > 0) &&
         (!chart.y.logarithmic || point.y > 0);
}

struct Span {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// The values of one axis, widened so that it has a length.
Span span_of(const Chart& chart, bool is_x) {
  const Axis& axis = is_x ? chart.x : chart.y;
  Span span;
  for (const Series& series : chart.series) {
    // Raw values may reach far out; what is read are the smoothed ones.
    if (!is_x && series.style == Series::Style::kFaintLine) continue;
    for (const Point& point : series.points) {
      if (shown(chart, point)) span.include(is_x ? point.x : point.y);
    }
  }
  if (span.low > span.high) span = {1, 2};
  if (!is_x && axis.logarithmic) {
    span.low = std::pow(10, std::floor(std::log10(span.low)));
    span.high = std::pow(10, std::ceil(std::log10(span.high)));
  } else if (!is_x) {
    const std::vector<double> around = ticks(span.low, span.high, false);
    span.include(around.front());
    span.include(around.back());
  }
  if (span.low == span.high) span.high = span.low == 0 ? 1 : span.low * 2;
  return span;
}

std::string text_at(double x, double y, std::string_view classes,
                    std::string_view anchor, const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" "
      "text-anchor=\"{}\">{}</text>\n",
      x, y, classes, anchor, escape_html(text));
}

std::string line_between(Point a, Point b, std::string_view classes) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
      "class=\"{}\"/>\n",
      a.x, a.y, b.x, b.y, classes);
}

// Strips lie between the curves and the axis.
double plot_bottom(const Chart& chart) {
  const auto strips = static_cast<double>(chart.strips.size());
  return kHeight - kBottom - strips * (kStripHeight + kStripGap);
}

// Everything of one chart that needs both scales.
class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart),
        x_span_(span_of(chart, true)),
        y_span_(span_of(chart, false)),
        x_(chart.x, x_span_.low, x_span_.high, kLeft, kWidth - kRight),
        y_(chart.y, y_span_.low, y_span_.high, plot_bottom(chart), kTop) {}

  std::string axes() const;
  std::string strips() const;
  std::string series(const Series& series) const;

 private:
  // Points on the drawing, thinned out.
  std::vector<Point> place(const Series& series) const;
  std::string line(const Series& series) const;
  std::string dots(const Series& series) const;

  const Chart& chart_;
  Span x_span_;
  Span y_span_;
  Scale x_;
  Scale y_;
};

std::string Drawing::axes() const {
  const double bottom = kHeight - kBottom;
  std::string svg;
  for (const double tick :
       ticks(y_span_.low, y_span_.high, chart_.y.logarithmic)) {
    if (tick < y_span_.low || tick > y_span_.high) continue;
    svg += line_between({kLeft, y_(tick)}, {kWidth - kRight, y_(tick)}, "grid");
    svg +=
        text_at(kLeft - 8, y_(tick) + 4, "tick", "end", chart_.y.format(tick));
  }
  for (const double tick :
       ticks(x_span_.low, x_span_.high, chart_.x.logarithmic)) {
    if (tick < x_span_.low || tick > x_span_.high) continue;
    svg += line_between({x_(tick), bottom}, {x_(tick), bottom + 4}, "axis");
    svg +=
        text_at(x_(tick), bottom + 18, "tick", "middle", chart_.x.format(tick));
  }
  svg += line_between({kLeft, bottom}, {kWidth - kRight, bottom}, "axis");
  svg += text_at((kLeft + kWidth - kRight) / 2, kHeight - 8, "title", "middle",
                 chart_.x.title);
  svg += text_at(0, 12, "title", "start", chart_.y.title);
  return svg;
}

std::string Drawing::strips() const {
  std::string svg;
  double top = plot_bottom(chart_) + kStripGap;
  for (const Strip& strip : chart_.strips) {
    const auto& bands = strip.bands;
    svg += fmt::format("<g class=\"strip c{}\"><title>{}</title>\n",
                       strip.color, escape_html(strip.name));
    for (std::size_t i = 0, end = 0; i < bands.size(); i = end) {
      // Neighbours that look alike are one rectangle.
      while (end < bands.size() && bands[end].strength == bands[i].strength) {
        ++end;
      }
      const double left = x_(std::max(bands[i].from, x_span_.low));
      const double right = x_(std::min(bands[end - 1].to, x_span_.high));
      if (right <= left) continue;
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" "
          "fill-opacity=\"{:.2f}\"/>\n",
          left, top, right - left, kStripHeight, bands[i].strength);
    }
    svg += "</g>\n";
    top += kStripHeight + kStripGap;
  }
  return svg;
}

std::vector<Point> Drawing::place(const Series& series) const {
  std::vector<Point> visible;
  for (const Point& point : series.points) {
    if (shown(chart_, point)) visible.push_back(point);
  }
  const std::size_t stride = (visible.size() + kMostPoints - 1) / kMostPoints;
  std::vector<Point> placed;
  for (std::size_t i = 0; i < visible.size(); ++i) {
    // The last point is where a curve ends: it stays.
    if (i % stride != 0 && i + 1 != visible.size()) continue;
    const double y = std::clamp(visible[i].y, y_span_.low, y_span_.high);
    placed.push_back({x_(visible[i].x), y_(y)});
  }
  return placed;
}

std::string Drawing::dots(const Series& series) const {
  std::string svg;
  for (const Point& point : series.points) {
    if (!shown(chart_, point)) continue;
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" class=\"dot c{}\">"
        "<title>{}: {} at {} {}</title></circle>\n",
        x_(point.x), y_(point.y), kDotRadius, series.color,
        escape_html(series.name), chart_.y.format(point.y),
        escape_html(chart_.x.title), chart_.x.format(point.x));
  }
  return svg;
}

std::string Drawing::line(const Series& series) const {
  std::string coordinates;
  for (const Point& point : place(series)) {
    coordinates += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
  }
  const bool faint = series.style == Series::Style::kFaintLine;
  return fmt::format(
      "<polyline points=\"{}\" class=\"line c{}{}\"><title>{}</title>"
      "</polyline>\n",
      coordinates, series.color, faint ? " faint" : "",
      escape_html(series.name));
}

std::string Drawing::series(const Series& series) const {
  std::string svg;
  const Series::Style style = series.style;
  if (style != Series::Style::kDots) svg += line(series);
  if (style == Series::Style::kDots || style == Series::Style::kDottedLine) {
    svg += dots(series);
  }
  return svg;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string render_svg(const Chart& chart) {
  const Drawing drawing(chart);
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth,
      kHeight, escape_html(chart.title));
  svg += drawing.axes();
  svg += drawing.strips();
  for (const Series& series : chart.series) svg += drawing.series(series);
  return svg + "</svg>\n";
}

}  // namespace thinwire::train_gpt
