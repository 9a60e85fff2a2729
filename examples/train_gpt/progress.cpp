// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ostream>
#include <utility>

#include "examples/train_gpt/units.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::int64_t kLines = 10;
constexpr std::int64_t kBarWidth = 20;
constexpr double kRecentSeconds = 10;
constexpr double kMostSecondsWithoutALine = 30;

double steady_seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Progress::Style Progress::style_for_stderr(bool quiet) {
  if (quiet) return Style::kNone;
  return isatty(STDERR_FILENO) == 1 ? Style::kBar : Style::kLines;
}

Progress::Progress(std::ostream& out, Style style, std::string name,
                   std::int64_t steps, std::int64_t steps_per_line,
                   std::function<double()> clock)
    : out_(out),
      style_(style),
      name_(std::move(name)),
      steps_(steps),
      steps_per_line_(steps_per_line),
      clock_(clock ? std::move(clock) : steady_seconds),
      newest_line_(clock_()) {}

std::string Progress::bar(std::int64_t step) const {
  const std::int64_t full = kBarWidth * step / steps_;
  std::string text;
  for (std::int64_t i = 0; i < kBarWidth; ++i) text += i < full ? "█" : "░";
  return text;
}

std::string Progress::line(const StepRow& row) const {
  const double left = sum_.seconds / static_cast<double>(recent_.size()) *
                      static_cast<double>(steps_ - row.step);
  std::string text =
      fmt::format("{}/{}  loss {:.3f}", row.step, steps_, row.loss);
  if (val_loss_) text += fmt::format("  val {:.3f}", *val_loss_);
  if (const double scale = row.more.value("loss_scale", 1.0); scale != 1)
    text += fmt::format("  scale {:g}", scale);
  if (const auto masked = row.more.value("masked", std::uint64_t{0}))
    text += fmt::format("  masked {}", masked);
  return text +
         fmt::format("  {} tokens/s  {}/step  {}  {} left",
                     format_count(sum_.tokens / std::max(sum_.seconds, 1e-9)),
                     format_bytes(static_cast<double>(row.bytes_sent)),
                     row.phase, format_duration(left));
}

void Progress::count(const StepRow& row) {
  recent_.emplace_back().add(row);
  sum_.add(row);
  while (recent_.size() > 1 &&
         sum_.seconds - recent_.front().seconds >= kRecentSeconds) {
    sum_.seconds -= recent_.front().seconds;
    sum_.tokens -= recent_.front().tokens;
    recent_.pop_front();
  }
}

bool Progress::is_due(const StepRow& row) const {
  if (clock_() - newest_line_ >= kMostSecondsWithoutALine) return true;
  return steps_per_line_ > 0
             ? row.step % steps_per_line_ == 0
             : row.step * kLines / steps_ != (row.step - 1) * kLines / steps_;
}

void Progress::step(const StepRow& row) {
  count(row);
  if (style_ == Style::kBar) {
    out_ << fmt::format("\r{} {} {}\033[K", name_, bar(row.step), line(row))
         << std::flush;
  } else if (style_ == Style::kLines && is_due(row)) {
    out_ << name_ << "  " << line(row) << std::endl;
    newest_line_ = clock_();
  }
}

void Progress::validation(const ValidationRow& row) {
  val_loss_ = row.val_loss;
}

void Progress::finish() {
  if (style_ == Style::kBar) out_ << std::endl;
}

}  // namespace thinwire::train_gpt
