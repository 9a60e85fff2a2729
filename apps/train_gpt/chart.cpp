// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/chart.h"

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

// Everything of one chart that needs both scales.
class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart),
        x_span_(span_of(chart, true)),
        y_span_(span_of(chart, false)),
        x_(chart.x, x_span_.low, x_span_.high, kLeft, kWidth - kRight),
        y_(chart.y, y_span_.low, y_span_.high, kHeight - kBottom, kTop) {}

  std::string axes() const;
  std::string marker(const Marker& marker) const;
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

std::string Drawing::marker(const Marker& marker) const {
  if (marker.x < x_span_.low || marker.x > x_span_.high) return "";
  const double x = x_(marker.x);
  // The word stands on the side that has more room.
  const bool on_the_left = x > (kLeft + kWidth) / 2;
  return line_between({x, kTop}, {x, kHeight - kBottom}, "marker") +
         text_at(x + (on_the_left ? -5 : 5), kTop + 10, "tick",
                 on_the_left ? "end" : "start", marker.label);
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

std::vector<double> linear_ticks(double low, double high) {
  constexpr double kWanted = 5;
  const double rough = (high - low) / kWanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead <= 1   ? 1
                               : lead <= 2 ? 2
                               : lead <= 5 ? 5
                                           : 10);
  std::vector<double> values;
  // The slack keeps rounding from adding one more at either end.
  for (double i = std::floor(low / step + 1e-9); i < high / step + 1 - 1e-9;
       ++i) {
    values.push_back(i * step);
  }
  return values;
}

std::vector<double> logarithmic_ticks(double low, double high) {
  const double first = std::floor(std::log10(low));
  const double last = std::ceil(std::log10(high));
  const bool is_short = last - first <= 2;
  std::vector<double> values;
  for (double decade = first; decade <= last; ++decade) {
    for (const double lead : {1.0, 2.0, 5.0}) {
      if (lead > 1 && (!is_short || decade == last)) continue;
      values.push_back(lead * std::pow(10, decade));
    }
  }
  return values;
}

}  // namespace

std::vector<double> ticks(double low, double high, bool logarithmic) {
  if (!(low < high)) return {low};
  return logarithmic ? logarithmic_ticks(low, high) : linear_ticks(low, high);
}

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
  for (const Marker& marker : chart.markers) svg += drawing.marker(marker);
  for (const Series& series : chart.series) svg += drawing.series(series);
  return svg + "</svg>\n";
}

}  // namespace thinwire::train_gpt
