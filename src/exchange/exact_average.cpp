// SPDX-License-Identifier: Apache-2.0
#include "exchange/exact_average.h"

#include <algorithm>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "core/require_view.h"
#include "kernels/pooled_norm.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::exchange {

using kernels::kSumChunk;

std::vector<comm::Work> queue_sums(comm::Communicator& comm, View values,
                                   std::span<const Range> ranges,
                                   std::size_t bucket_elements) {
  std::vector<comm::Work> queued;
  for (std::size_t i = 0; i < ranges.size();) {
    Range joined = ranges[i++];  // adjacent ranges are sent together
    while (i < ranges.size() && ranges[i].offset == joined.end())
      joined.size += ranges[i++].size;
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

ExactAverage::ExactAverage(comm::Communicator& comm, ThreadPool& pool,
                           std::size_t size, std::size_t bucket_elements)
    : comm_(comm),
      pool_(pool),
      size_(size),
      bucket_elements_(bucket_elements),
      chunk_squares_(kernels::sum_chunks(size)) {}

ExactAverage::~ExactAverage() {
  for (const Begun& part : begun_)
    for (const comm::Work& work : part.works) comm::wait_ignoring_errors(work);
}

// Computes the local sums of squares now, because the average overwrites the
// gradients.
void ExactAverage::begin_early(View grads, Range range) {
  require_view("grads", grads, size_, true, true);
  require_on_grid(range);
  if (range.size == 0) return;
  for (const Begun& part : begun_)
    require(
        range.end() <= part.range.offset || part.range.end() <= range.offset,
        "range",
        fmt::format("apart from {} of size {}, which is under way",
                    part.range.offset, part.range.size),
        fmt::format("{} of size {}", range.offset, range.size));
  sum_chunks_of(grads, range);
  begun_.push_back(
      {range, queue_sums(comm_, grads, {&range, 1}, bucket_elements_)});
}

void ExactAverage::require_on_grid(Range range) const {
  require(range.offset % kSumChunk == 0 && range.offset <= size_ &&
              range.size <= size_ - range.offset &&
              (range.size % kSumChunk == 0 || range.end() == size_),
          "range", fmt::format("multiples of {} within {}", kSumChunk, size_),
          fmt::format("{} of size {}", range.offset, range.size));
}

void ExactAverage::measure_early(ConstView grads, Range range) {
  require(grads.size() == size_, "grads", fmt::format("{} elements", size_),
          grads.size());
  require_on_grid(range);
  sum_chunks_of(grads, range);
  measured_.add(range);
}

double ExactAverage::local_squares(ConstView grads) {
  ReadyRanges done = std::exchange(measured_, {});
  for (const Begun& part : begun_) done.add(part.range);
  for (const Range& rest : done.missing(size_)) sum_chunks_of(grads, rest);
  return kernels::sum_of_chunks(chunk_squares_);
}

void ExactAverage::sum_chunks_of(ConstView grads, Range range) {
  kernels::chunk_sums_of_squares(
      pool_, grads.subview(range.offset, range.size),
      std::span(chunk_squares_).subspan(range.offset / kSumChunk));
}

void ExactAverage::complete(View grads, WaitMeter& meter) {
  ReadyRanges done;
  for (const Begun& part : begun_) done.add(part.range);
  const auto rest =
      queue_sums(comm_, grads, done.missing(size_), bucket_elements_);
  abandon(meter);
  meter.wait_for(rest);
}

void ExactAverage::abandon(WaitMeter& meter) {
  for (const Begun& part : begun_) meter.wait_for(part.works);
  begun_.clear();
}

}  // namespace thinwire::exchange
