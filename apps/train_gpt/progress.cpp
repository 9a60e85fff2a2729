// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ostream>

#include "apps/train_gpt/units.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::int64_t kLines = 10;
constexpr std::int64_t kBarWidth = 20;

}  // namespace

Progress::Style Progress::style_for_stderr(bool quiet) {
  if (quiet) return Style::kNone;
  return isatty(STDERR_FILENO) == 1 ? Style::kBar : Style::kLines;
}

Progress::Progress(std::ostream& out, Style style, std::string name,
                   std::int64_t steps, std::int64_t steps_per_line)
    : out_(out),
      style_(style),
      name_(std::move(name)),
      steps_(steps),
      steps_per_line_(steps_per_line) {}

std::string Progress::bar(std::int64_t step) const {
  const std::int64_t full = kBarWidth * step / steps_;
  std::string text;
  for (std::int64_t i = 0; i < kBarWidth; ++i) text += i < full ? "█" : "░";
  return text;
}

std::string Progress::line(const StepRow& row) const {
  const double left = seconds_ / static_cast<double>(row.step) *
                      static_cast<double>(steps_ - row.step);
  std::string text =
      fmt::format("{}/{}  loss {:.3f}", row.step, steps_, row.loss);
  if (validated_) text += fmt::format("  val {:.3f}", val_loss_);
  if (row.loss_scale != 1) text += fmt::format("  scale {:g}", row.loss_scale);
  return text + fmt::format("  {} tokens/s  {}/step  {}  {} left",
                            format_count(tokens_ / std::max(seconds_, 1e-9)),
                            format_bytes(static_cast<double>(row.bytes_sent)),
                            row.phase, format_duration(left));
}

void Progress::step(const StepRow& row) {
  seconds_ += row.seconds;
  tokens_ += static_cast<double>(row.tokens);
  if (style_ == Style::kBar) {
    out_ << fmt::format("\r{} {} {}\033[K", name_, bar(row.step), line(row))
         << std::flush;
  } else if (style_ == Style::kLines) {
    const bool is_due =
        steps_per_line_ > 0
            ? row.step % steps_per_line_ == 0
            : row.step * kLines / steps_ != (row.step - 1) * kLines / steps_;
    if (is_due) out_ << name_ << "  " << line(row) << std::endl;
  }
}

void Progress::validation(const ValidationRow& row) {
  val_loss_ = row.val_loss;
  validated_ = true;
}

void Progress::finish() {
  if (style_ == Style::kBar) out_ << std::endl;
}

}  // namespace thinwire::train_gpt
