// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace thinwire::train_gpt {

struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  enum class Style {
    kLine,
    kFaintLine,   ///< Raw values behind a smoothed line.
    kDots,        ///< A dot at every point.
    kDottedLine,  ///< Line with a dot at every point.
  };
  std::string name;
  std::size_t color = 0;  ///< Number of the colour class, "c0", "c1", ...
  Style style = Style::kLine;
  std::vector<Point> points;  ///< Points that are not finite are left out.
};

struct Axis {
  std::string title;
  bool logarithmic = false;  ///< Points at or below 0 are left out.
  std::string (*format)(double) = nullptr;  ///< Of tick values.
  /// Points beyond it are left out.
  double most = std::numeric_limits<double>::infinity();
};

/// Part of a strip.
struct Band {
  double from = 0;  ///< On the x axis.
  double to = 0;
  double strength = 1;  ///< In [0, 1]: how opaque.
};

/// A thin bar along the x axis.
struct Strip {
  std::string name;
  std::size_t color = 0;    ///< As that of a series.
  std::vector<Band> bands;  ///< In order, next to each other.
};

struct Chart {
  std::string title;  ///< What it shows, for people who cannot see it.
  Axis x;
  Axis y;
  std::vector<Series> series;
  std::vector<Strip> strips;
};

/// The chart as inline SVG. Colours come from the page's style sheet: classes
/// grid, axis, tick, title, strip, c0 ... .
[[nodiscard]] std::string render_svg(const Chart& chart);

/// Round values that cover [low, high], low < high: about five of them on a
/// linear axis; powers of ten, and 2 and 5 times those over short spans, on a
/// logarithmic one, where low > 0.
[[nodiscard]] std::vector<double> ticks(double low, double high,
                                        bool logarithmic);

/// `text` with <, >, & and quotes as entities.
[[nodiscard]] std::string escape_html(const std::string& text);

}  // namespace thinwire::train_gpt
