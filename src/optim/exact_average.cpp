// SPDX-License-Identifier: Apache-2.0
#include "optim/exact_average.h"

#include <algorithm>

#include "comm/wait_ignoring_errors.h"
#include "optim/checks.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

using kernels::kSumChunk;

ExactAverage::ExactAverage(comm::Communicator& comm, ThreadPool& pool,
                           const ParameterLayout& layout,
                           std::size_t bucket_elements)
    : comm_(comm),
      pool_(pool),
      size_(layout.size()),
      bucket_elements_(bucket_elements),
      chunk_squares_(kernels::sum_chunks(size_)) {}

ExactAverage::~ExactAverage() {
  for (const Begun& part : begun_)
    for (const comm::Work& work : part.works) comm::wait_ignoring_errors(work);
}

// Own sums of squares are formed now: soon the gradients are no longer own.
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
  const GroupRange whole{range, 0};
  begun_.push_back(
      {range, queue_sums(comm_, grads, {&whole, 1}, bucket_elements_)});
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
  measured_.push_back(range);
}

double ExactAverage::local_squares(ConstView grads) {
  std::vector<Range> done = begun();
  done.insert(done.end(), measured_.begin(), measured_.end());
  measured_.clear();
  for (const GroupRange& rest : missing(std::move(done)))
    sum_chunks_of(grads, rest.range);
  return kernels::sum_of_chunks(chunk_squares_);
}

void ExactAverage::sum_chunks_of(ConstView grads, Range range) {
  chunk_sums_of_squares(
      pool_, grads.subview(range.offset, range.size),
      std::span(chunk_squares_).subspan(range.offset / kSumChunk));
}

void ExactAverage::complete(View grads, StepMeter& meter) {
  const auto rest =
      queue_sums(comm_, grads, missing(begun()), bucket_elements_);
  abandon(meter);
  meter.wait_for(rest);
}

void ExactAverage::abandon(StepMeter& meter) {
  for (const Begun& part : begun_) meter.wait_for(part.works);
  begun_.clear();
}

std::vector<Range> ExactAverage::begun() const {
  std::vector<Range> ranges;
  for (const Begun& part : begun_) ranges.push_back(part.range);
  return ranges;
}

// Elements that are in none of these ranges.
std::vector<GroupRange> ExactAverage::missing(std::vector<Range> done) const {
  if (done.empty()) return {{{0, size_}, 0}};
  std::sort(done.begin(), done.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  std::vector<GroupRange> rest;
  std::size_t at = 0;
  for (const Range& range : done) {
    if (range.offset > at) rest.push_back({{at, range.offset - at}, 0});
    at = std::max(at, range.end());
  }
  if (at < size_) rest.push_back({{at, size_ - at}, 0});
  return rest;
}

}  // namespace thinwire::optim
