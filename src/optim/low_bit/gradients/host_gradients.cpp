// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/gradients/host_gradients.h"

#include <algorithm>
#include <numeric>

#include "comm/wait_ignoring_errors.h"
#include "kernels/pooled_norm.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

HostGradients::HostGradients(const comm::HostGroups& groups, ThreadPool& pool,
                             const LowBitLayout& layout,
                             const exchange::Places& places)
    : inside_(*groups.inside),
      pool_(pool),
      layout_(layout),
      places_(places),
      block_in_means_(layout.blocks.blocks().size()),
      squares_(layout.blocks.blocks().size()) {
  for (const exchange::Bucket& bucket : layout.blocks.buckets())
    add_bucket(bucket);
  const auto ranks = static_cast<std::size_t>(inside_.size());
  for (const Range& exact : layout.exact) {
    Run run{.range = exact, .counts = {}, .stays_exact = true};
    for (std::size_t l = 0; l < ranks; ++l)
      run.counts.push_back(exact.size * (l + 1) / ranks -
                           exact.size * l / ranks);
    runs_.push_back(std::move(run));
  }
  place();
}

HostGradients::~HostGradients() {
  for (const comm::Work& work : works_) comm::wait_ignoring_errors(work);
}

// Adds runs of a bucket's adjacent blocks, over all its pieces.
void HostGradients::add_bucket(const exchange::Bucket& bucket) {
  const auto ranks = static_cast<std::size_t>(inside_.size());
  bool follows = false;
  for (std::size_t b = bucket.first_block(); b < bucket.end_block(); ++b) {
    const exchange::Block& block = layout_.blocks.blocks()[b];
    if (!follows || runs_.back().range.end() != block.values.offset)
      runs_.push_back({.range = {block.values.offset, 0},
                       .counts = std::vector<std::size_t>(ranks)});
    follows = true;
    Run& run = runs_.back();
    run.range.size += block.values.size;
    run.counts[static_cast<std::size_t>(block.server) / places_.workers] +=
        block.values.size;
  }
}

void HostGradients::place() {
  const auto own = static_cast<std::size_t>(inside_.rank());
  for (Run& run : runs_) {
    const auto begin = run.counts.begin();
    run.own = {std::accumulate(begin, begin + inside_.rank(), run.range.offset),
               run.counts[own]};
    if (!run.stays_exact) continue;
    run.in_means = exact_size_;
    exact_size_ += run.own.size;
  }
  own_size_ = exact_size_;
  std::size_t block = 0;
  const auto blocks = layout_.blocks.blocks();
  for (Run& run : runs_) {
    if (run.stays_exact) continue;
    run.in_means = own_size_;
    own_size_ += run.own.size;
    for (;
         block < blocks.size() && blocks[block].values.end() <= run.range.end();
         ++block)
      if (places_.has(blocks[block]))
        block_in_means_[block] =
            run.in_means + (blocks[block].values.offset - run.own.offset);
  }
  exact_squares_.resize(runs_.size());
}

// ---- the reduction

void HostGradients::begin_early(View grads, Range range) {
  if (range.size == 0) return;
  ready_.add(range);
  for (Run& run : runs_)
    if (!run.has_begun && ready_.cover(run.range)) begin(grads, run);
}

void HostGradients::begin(View grads, Run& run) {
  const bool is_float = grads.dtype() == DType::kFloat32;
  if (const std::size_t needed = is_float ? exact_size_ : own_size_;
      means_.size() < needed) {
    const MemoryScope scope(MemoryKind::kGradients);
    means_ = Buffer::of<float>(needed);
  }
  const bool in_place = is_float && !run.stays_exact;
  const View own = in_place ? grads.subview(run.own.offset, run.own.size)
                            : means_.view().subview(run.in_means, run.own.size);
  works_.push_back(inside_.queue_reduce_scatter(
      grads.subview(run.range.offset, run.range.size), own, run.counts,
      comm::ReduceOp::kMean));
  run.has_begun = true;
}

void HostGradients::finish_early() {
  for (const comm::Work& work : works_) work.wait();
  works_.clear();
}

void HostGradients::average(View grads, StepMeter& step) {
  for (Run& run : runs_)
    if (!run.has_begun) begin(grads, run);
  step.waiting([&] { finish_early(); });
  for (Run& run : runs_) run.has_begun = false;
  ready_.clear();
  pieces_only_ = true;
  const auto blocks = layout_.blocks.blocks();
  pool_.for_each(blocks.size(), [&](std::size_t b) {
    if (places_.has(blocks[b]))
      squares_[b] = kernels::sum_of_squares(of(b, grads));
  });
  for (std::size_t k = 0; k < runs_.size(); ++k)
    if (runs_[k].stays_exact)
      exact_squares_[k] = kernels::sum_of_squares(
          pool_, means_.view().subview(runs_[k].in_means, runs_[k].own.size));
}

void HostGradients::average_all(View grads, StepMeter& step) {
  pieces_only_ = false;
  step.waiting([&] { inside_.all_reduce(grads, comm::ReduceOp::kMean); });
}

View HostGradients::of(std::size_t block, View grads) {
  const Range& at = layout_.blocks.blocks()[block].values;
  if (!pieces_only_ || grads.dtype() == DType::kFloat32)
    return grads.subview(at.offset, at.size);
  return means_.view().subview(block_in_means_[block], at.size);
}

double HostGradients::sum_of_squares() const {
  double sum = 0;
  for (const double of_block : squares_) sum += of_block;
  for (const double of_run : exact_squares_) sum += of_run;
  return sum;
}

}  // namespace thinwire::optim
