// SPDX-License-Identifier: Apache-2.0
#include "optim/exact_exchange.h"

#include <algorithm>

#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

namespace {

// Pieces small enough to share out, large enough to cost nothing; whole chunks
// of sums.
constexpr std::size_t kGrain = std::size_t{1} << 16;
static_assert(kGrain % kernels::kSumChunk == 0);

void sum_chunks(ThreadPool& pool, ConstView values, std::span<double> sums,
                void (*sum)(ConstView, std::span<double>)) {
  pool.for_each((values.size() + kGrain - 1) / kGrain, [&](std::size_t piece) {
    const std::size_t at = piece * kGrain;
    const std::size_t size = std::min(kGrain, values.size() - at);
    sum(values.subview(at, size),
        sums.subspan(at / kernels::kSumChunk, kernels::sum_chunks(size)));
  });
}

double sum_by_chunks(ThreadPool& pool, ConstView values,
                     void (*sum)(ConstView, std::span<double>)) {
  std::vector<double> sums(kernels::sum_chunks(values.size()));
  sum_chunks(pool, values, sums, sum);
  return kernels::sum_of_chunks(sums);
}

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

void chunk_sums_of_squares(ThreadPool& pool, ConstView values,
                           std::span<double> sums) {
  sum_chunks(pool, values, sums, kernels::chunk_sums_of_squares);
}

double sum_of_squares(ThreadPool& pool, ConstView values) {
  return sum_by_chunks(pool, values, kernels::chunk_sums_of_squares);
}

double sum_of_abs(ThreadPool& pool, ConstView values) {
  return sum_by_chunks(pool, values, kernels::chunk_sums_of_abs);
}

std::vector<comm::Work> queue_sums(comm::Communicator& comm, View values,
                                   std::span<const GroupRange> ranges,
                                   std::size_t bucket_elements) {
  std::vector<comm::Work> queued;
  // Neighbours of different groups travel together.
  for (std::size_t i = 0; i < ranges.size();) {
    Range joined = ranges[i++].range;
    while (i < ranges.size() && ranges[i].range.offset == joined.end())
      joined.size += ranges[i++].range.size;
    for (std::size_t at = 0; at < joined.size; at += bucket_elements)
      queued.push_back(comm.queue_all_reduce(
          values.subview(joined.offset + at,
                         std::min(bucket_elements, joined.size - at)),
          values.dtype() == DType::kFloat32 ? comm::ReduceOp::kSum
                                            : comm::ReduceOp::kMean));
  }
  return queued;
}

double sum_divisor(const comm::Communicator& comm, DType dtype) {
  return dtype == DType::kFloat32 ? comm.size() : 1;
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
