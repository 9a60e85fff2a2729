// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "optim/norm_cells.h"
#include "optim/step_pieces.h"
#include "thinwire/kernels/norm.h"
#include "zero/shard_group.h"

// Sums over arrays that are distributed over several ranks.
namespace thinwire::zero {

using kernels::kSumChunk;

namespace {

// Returns the number of cells of the fixed grid that a range touches.
std::size_t grid_cells(const Range& range) {
  return range.size == 0
             ? 0
             : kernels::sum_chunks(range.end()) - range.offset / kSumChunk;
}

}  // namespace

std::vector<double> ShardGroup::squares(std::span<const Range> uncounted,
                                        ThreadPool& pool) {
  // Number of elements that one thread measures at a time, a multiple of the
  // grid.
  constexpr std::size_t kPart = 64 * kSumChunk;
  struct Job {
    ConstView values;
    std::size_t first;  // index of the first sum
  };
  std::vector<Job> jobs;
  std::size_t sums = 0;
  const auto add = [&](ConstView values) {
    jobs.push_back({values, sums});
    sums += kernels::sum_chunks(values.size());
  };
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b) {
    const Range range = own(b);
    const ConstView values = gradients_->piece(b);
    const std::size_t to_grid = (kSumChunk - range.offset % kSumChunk);
    std::size_t at = 0;
    if (to_grid < kSumChunk && range.size > 0) {
      at = std::min(to_grid, range.size);
      add(values.subview(0, at));
    }
    for (; at < range.size; at += kPart)
      add(values.subview(at, std::min(kPart, range.size - at)));
  }
  std::vector<double> all(sums);
  pool.for_each(jobs.size(), [&](std::size_t j) {
    const ConstView values = jobs[j].values;
    kernels::chunk_sums_of_squares(
        values, std::span(all).subspan(jobs[j].first,
                                       kernels::sum_chunks(values.size())));
  });
  std::size_t first = 0;
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b) {
    const Range range = own(b);
    for (const Range& whole : uncounted) {
      const std::size_t begin = std::max(whole.offset, range.offset);
      const std::size_t end = std::min(whole.end(), range.end());
      if (begin >= end) continue;
      for (const Range& cell : optim::cut_at_grid({begin, end - begin})) {
        double& sum =
            all[first + cell.offset / kSumChunk - range.offset / kSumChunk];
        const Range in_piece{cell.offset - range.offset, cell.size};
        sum = optim::counted(sum, gradients_->piece(b), {&in_piece, 1}, pool);
      }
    }
    first += grid_cells(range);
  }
  return all;
}

std::size_t num_cells(const ShardLayout& shards, int rank) {
  std::size_t cells = 0;
  for (const ShardBucket& bucket : shards.buckets())
    cells += grid_cells(bucket.pieces[static_cast<std::size_t>(rank)]);
  return cells;
}

double sum_in_order(const ShardLayout& shards,
                    std::span<const std::span<const double>> squares) {
  std::vector<std::size_t> next(squares.size());
  kernels::ChunkTotal<> total;
  for (const ShardBucket& bucket : shards.buckets())
    for (const int owner : shards.owners()) {
      const auto r = static_cast<std::size_t>(owner);
      const std::size_t first = bucket.pieces[r].offset / kSumChunk;
      for (std::size_t c = 0; c < grid_cells(bucket.pieces[r]); ++c)
        total.add(first + c, squares[r][next[r]++]);
    }
  return total.total();
}

std::int64_t ShardGroup::first_nonfinite() {
  std::int64_t first = -1;
  for (const Fragment& fragment : fragments_) {
    const auto index = static_cast<std::int64_t>(fragment.parameter);
    if (first >= 0 && index >= first) continue;
    if (!std::isfinite(kernels::sum_of_squares(array(fragment, "grad"))))
      first = index;
  }
  return first;
}

ShardGroup::NormPlan ShardGroup::plan_norms() const {
  const auto cells_of = [this](const Fragment& fragment) {
    return optim::cut_at_grid({layout_.parameters()[fragment.parameter].offset +
                                   fragment.range.offset,
                               fragment.range.size});
  };
  NormPlan plan;
  std::size_t b = 0;
  for (std::size_t f = 0; f < fragments_.size(); ++f)
    for (const Range& flat : cells_of(fragments_[f])) {
      while (own(b).end() <= flat.offset || own(b).size == 0) ++b;
      const std::size_t at = flat.offset - own(b).offset;
      if (plan.runs.empty() || plan.runs.back().bucket != b ||
          plan.runs.back().num_cells == NormPlan::kMostCells)
        plan.runs.push_back({b, {at, 0}, plan.own.size(), 0});
      plan.runs.back().part.size += flat.size;
      ++plan.runs.back().num_cells;
      plan.own.push_back({f, {position(b) + at, flat.size}});
    }
  std::vector<std::size_t> next;  // index of each rank's next sum
  std::size_t total = 0;
  for (int r = 0; r < comm_.size(); ++r) {
    next.push_back(total);
    for (const Fragment& fragment : shards_.fragments(r))
      total += cells_of(fragment).size();
    plan.counts.push_back(total - next.back());
  }
  for (std::size_t p = 0; p < holds_.size(); ++p)
    for (const Fragment& fragment : shards_.fragments_of(p))
      for (const Range& cell : cells_of(fragment)) {
        plan.all.push_back({p, cell});
        plan.places.push_back(next[static_cast<std::size_t>(fragment.owner)]++);
      }
  return plan;
}

// Measures whole parameters. Adds the sums of cells in flat order, so that the
// norm does not depend on which rank owns a cell.
void ShardGroup::measure(std::int64_t step, float grad_scale, ThreadPool& pool,
                         optim::StepMeter& meter) {
  const NormPlan& plan = norm_plan_;
  std::vector<optim::NormSums> own_sums(plan.own.size());
  pool.for_each(plan.runs.size(), [&](std::size_t r) {
    const NormPlan::Run& run = plan.runs[r];
    rule_->measure(step,
                   std::span(plan.own).subspan(run.first_cell, run.num_cells),
                   arrays(run.bucket, run.part, grad_scale),
                   std::span(own_sums).subspan(run.first_cell, run.num_cells));
  });

  constexpr std::size_t kDoubles = sizeof(optim::NormSums) / sizeof(double);
  std::vector<std::size_t> counts;
  for (const std::size_t count : plan.counts)
    counts.push_back(count * kDoubles);
  std::vector<optim::NormSums> gathered(plan.all.size());
  meter.waiting([&] {
    comm_.all_gather(
        ConstView(own_sums.data(), own_sums.size() * kDoubles, DType::kFloat64),
        View(gathered.data(), gathered.size() * kDoubles, DType::kFloat64),
        counts);
  });
  std::vector<optim::NormSums> in_order;
  in_order.reserve(gathered.size());
  for (const std::size_t place : plan.places)
    in_order.push_back(gathered[place]);
  norms_ =
      optim::parameter_sums(plan.all, in_order, layout_.parameters().size());
  std::vector<optim::NormSums> of_fragment;
  for (const Fragment& fragment : fragments_)
    of_fragment.push_back(norms_[fragment.parameter]);
  rule_->set_norms(step, of_fragment);
}

void ShardGroup::put_lamb_coeffs(std::span<double> coeffs) const {
  for (std::size_t p = 0; p < norms_.size(); ++p)
    if (holds_[p])
      coeffs[p] = rule_->lamb_coeff(layout_.parameters()[p].group, norms_[p]);
}

}  // namespace thinwire::zero
