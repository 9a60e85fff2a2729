// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/gradient_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/require.h"
#include "exchange/bucket_schedule.h"

namespace thinwire::exchange {

namespace {

Range intersection(const Range& a, const Range& b) {
  const std::size_t begin = std::max(a.offset, b.offset);
  return {begin, std::min(a.end(), b.end()) - begin};
}

}  // namespace

GradientWindow::GradientWindow(const ParameterLayout& layout,
                               std::vector<Range> buckets, GradientSink& sink)
    : layout_(layout),
      sink_(sink),
      schedule_(std::make_unique<BucketSchedule>(layout, std::move(buckets))) {
  reset();
}

GradientWindow::~GradientWindow() = default;

bool GradientWindow::is_ready(std::size_t parameter) const {
  return schedule_->is_ready(parameter);
}

const std::vector<Range>& GradientWindow::buckets() const noexcept {
  return schedule_->ranges();
}

void GradientWindow::reset() {
  backwards_ = 0;
  in_backward_ = false;
  is_complete_ = false;
  sends_ = false;
  has_sent_ = false;
  late_ = {};
  has_gradient_.assign(layout_.parameters().size(), false);
  is_sent_.assign(buckets().size(), false);
}

void GradientWindow::restart() {
  reset();
  sink_.clear();
}

// ---- gradients one by one

void GradientWindow::begin(Backward which) {
  if (is_lost_)
    refuse(
        "begin_backward: a backward has failed after some of its gradients "
        "were sent; this object may only be destroyed");
  if (in_backward_) refuse("begin_backward: inside another backward");
  if (is_complete_)
    refuse("begin_backward: the last backward has been; call step() first");
  if (which.is_first == (backwards_ > 0))
    refuse(which.is_first
               ? "begin_backward: there was a first backward since step()"
               : "begin_backward: the first backward since step() is missing");
  sends_ = sink_.begin(which);
  backward_ = which;
  in_backward_ = true;
  is_complete_ = which.is_last;
  ++backwards_;
  late_ = {};
  schedule_->begin();
}

void GradientWindow::require_open(std::size_t parameter) const {
  const auto parameters = layout_.parameters();
  require(parameter < parameters.size(), "index",
          fmt::format("below {}", parameters.size()), parameter);
  if (!in_backward_) refuse("collect: outside of a backward");
  if (is_ready(parameter))
    refuse(fmt::format("collect: '{}' has come before in this backward",
                       parameters[parameter].name));
}

void GradientWindow::collect(std::size_t parameter, ConstView gradient) {
  require_open(parameter);
  sink_.check(parameter, gradient);
  has_gradient_[parameter] = true;
  store(parameter, gradient);
}

// Sends each part of a parameter, if possible, before it stores the next one. A
// parameter may be larger than the memory of the buckets in flight.
void GradientWindow::store(std::size_t parameter, ConstView gradient) {
  const Parameter& p = layout_.parameters()[parameter];
  const Range of = schedule_->buckets_of(parameter);
  if (of.size == 0) schedule_->mark_ready(parameter);
  for (std::size_t b = of.end(); b-- > of.offset;) {
    const Range range = intersection({p.offset, p.size}, buckets()[b]);
    sink_.store(
        {.parameter = parameter,
         .bucket = b,
         .range = range,
         .values = gradient.empty()
                       ? gradient
                       : gradient.subview(range.offset - p.offset, range.size),
         .is_first = backward_.is_first});
    schedule_->mark_part_ready(parameter, b);
    if (!sends_) continue;
    while (const auto complete = schedule_->take_complete())
      send_bucket(*complete);
  }
}

void GradientWindow::end() {
  if (!in_backward_) refuse("end_backward: there was no begin_backward()");
  if (sends_) {
    if (const auto held_up = schedule_->waiting_for())
      late_.parameter = static_cast<std::int64_t>(*held_up);
    for (std::size_t b = 0; b < schedule_->left(); ++b)
      late_.elements += buckets()[b].size;
  }
  for (std::size_t p = layout_.parameters().size(); p-- > 0;)
    if (!is_ready(p)) store(p, {});
  in_backward_ = false;
  sink_.end();
}

bool GradientWindow::cancel() {
  if (!in_backward_) return true;
  is_lost_ = has_sent_;
  is_lost_ ? reset() : restart();
  return !is_lost_;
}

// ---- gradients of all parameters

void GradientWindow::collect_all(ConstView gradients) {
  begin({});
  for (std::size_t i = layout_.parameters().size(); i-- > 0;) {
    const Parameter& p = layout_.parameters()[i];
    has_gradient_[i] = true;
    store(i, gradients.subview(p.offset, p.size));
  }
  end();
}

void GradientWindow::require_unsent(Range range) const {
  std::size_t covered = 0;
  bool is_unsent = true;
  for (const std::size_t b : buckets_in(range)) {
    covered += buckets()[b].size;
    is_unsent = is_unsent && !is_sent_[b];
  }
  if (is_unsent && covered == range.size && range.end() <= layout_.size())
    return;
  reject(
      fmt::format("range must be one of buckets() that has not left, or "
                  "neighbours of them, got {} of size {}",
                  range.offset, range.size));
}

void GradientWindow::send(Range range) {
  require_unsent(range);
  for (const std::size_t b : buckets_in(range)) send_bucket(b);
}

// Returns the buckets in the order in which they are sent.
std::vector<std::size_t> GradientWindow::buckets_in(Range range) const {
  std::vector<std::size_t> inside;
  for (std::size_t b = buckets().size(); b-- > 0;)
    if (buckets()[b].offset >= range.offset &&
        buckets()[b].end() <= range.end())
      inside.push_back(b);
  return inside;
}

void GradientWindow::send_rest() {
  for (std::size_t b = buckets().size(); b-- > 0;)
    if (!is_sent_[b]) send_bucket(b);
}

void GradientWindow::send_bucket(std::size_t bucket) {
  is_sent_[bucket] = true;
  try {
    has_sent_ = sink_.send(bucket) || has_sent_;
  } catch (...) {
    has_sent_ = true;  // the sink may have sent before it threw
    throw;
  }
}

}  // namespace thinwire::exchange
