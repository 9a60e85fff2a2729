// SPDX-License-Identifier: Apache-2.0
#include "optim/step_pieces.h"

#include <algorithm>

namespace thinwire::optim {

namespace {

// Size of a thread's piece, small enough to balance threads and large enough
// that scheduling costs nothing.
constexpr std::size_t kGrain = std::size_t{1} << 16;

}  // namespace

std::vector<GroupRange> group_ranges(const ParameterLayout& layout) {
  return group_ranges(layout, {0, layout.size()});
}

std::vector<GroupRange> group_ranges(const ParameterLayout& layout,
                                     Range part) {
  std::vector<GroupRange> ranges;
  for (const Parameter& p : layout.parameters()) {
    const std::size_t begin = std::max(p.offset, part.offset);
    const std::size_t end = std::min(p.offset + p.size, part.end());
    if (begin >= end) continue;
    if (!ranges.empty() && ranges.back().group == p.group)
      ranges.back().range.size += end - begin;
    else
      ranges.push_back({{begin, end - begin}, p.group});
  }
  return ranges;
}

void for_group_ranges(ThreadPool& pool, std::span<const GroupRange> ranges,
                      const std::function<void(Range, std::size_t)>& body) {
  std::vector<GroupRange> pieces;
  for (const GroupRange& r : ranges)
    for (std::size_t at = 0; at < r.range.size; at += kGrain)
      pieces.push_back(
          {{r.range.offset + at, std::min(kGrain, r.range.size - at)},
           r.group});
  pool.for_each(pieces.size(), [&](std::size_t piece) {
    body(pieces[piece].range, pieces[piece].group);
  });
}

double counted(double squares, ConstView grads,
               std::span<const Range> uncounted, ThreadPool& pool) {
  double rest = squares;
  for (const Range& range : uncounted)
    rest -=
        kernels::sum_of_squares(pool, grads.subview(range.offset, range.size));
  return rest < 0 ? 0 : rest;  // a rounding error
}

std::vector<Range> within(std::span<const Range> ranges, Range part) {
  std::vector<Range> found;
  for (const Range& range : ranges)
    if (range.offset >= part.offset && range.end() <= part.end())
      found.push_back({range.offset - part.offset, range.size});
  return found;
}

void apply_by_bucket(UpdateRule& rule, std::int64_t step,
                     const UpdateArrays& arrays, ThreadPool& pool,
                     const Buckets& buckets) {
  if (!buckets.tell || !rule.takes_parts())
    return rule.apply(step, arrays, pool);
  const std::size_t size = rule.layout().size();
  for (std::size_t at = 0; at < size; at += buckets.elements) {
    const Range part{at, std::min(buckets.elements, size - at)};
    rule.apply_part(step, part, part_of(arrays, part), pool);
    buckets.tell(part);
  }
}

void report_traffic(StepReport& report,
                    const comm::Counters& traffic) noexcept {
  report.bytes_sent = traffic.bytes_sent;
  report.collectives = traffic.collectives;
  report.messages = traffic.messages;
  report.bytes_between_hosts = traffic.bytes_between_hosts;
  report.comm_busy_seconds = traffic.busy_seconds;
}

StepMeter::~StepMeter() {
  report_traffic(report_, comm_.counters() - before_);
  report_.seconds = seconds_since(begin_);
}

}  // namespace thinwire::optim
