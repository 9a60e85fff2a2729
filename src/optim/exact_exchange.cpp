// SPDX-License-Identifier: Apache-2.0
#include "optim/exact_exchange.h"

#include <algorithm>

#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

namespace {

// Pieces small enough to share out, large enough to cost nothing.
constexpr std::size_t kGrain = std::size_t{1} << 16;

double sum_chunks_of(ThreadPool& pool, ConstView values,
                     double (*sum)(ConstView, std::size_t)) {
  std::vector<double> sums(kernels::sum_chunks(values.size()));
  pool.for_each(sums.size(),
                [&](std::size_t chunk) { sums[chunk] = sum(values, chunk); });
  double total = 0;
  for (const double chunk : sums) total += chunk;
  return total;
}

}  // namespace

std::vector<GroupRange> group_ranges(const ParameterLayout& layout) {
  std::vector<GroupRange> ranges;
  for (const Parameter& p : layout.parameters()) {
    if (p.size == 0) continue;
    if (!ranges.empty() && ranges.back().group == p.group &&
        ranges.back().range.end() == p.offset)
      ranges.back().range.size += p.size;
    else
      ranges.push_back({{p.offset, p.size}, p.group});
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

double sum_of_squares(ThreadPool& pool, ConstView values) {
  return sum_chunks_of(pool, values, kernels::chunk_sum_of_squares);
}

double sum_of_abs(ThreadPool& pool, ConstView values) {
  return sum_chunks_of(pool, values, kernels::chunk_sum_of_abs);
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

StepMeter::~StepMeter() {
  const comm::Counters now = comm_.counters();
  report_.bytes_sent = now.bytes_sent - before_.bytes_sent;
  report_.collectives = now.collectives - before_.collectives;
  report_.seconds = seconds_since(begin_);
}

}  // namespace thinwire::optim
