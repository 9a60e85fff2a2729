// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "shard/section.h"
#include "thinwire/kernels/norm.h"

// Sums over arrays of which this rank has parts.
namespace thinwire::shard {

using kernels::kSumChunk;

namespace {

// Cells of the grid that a range touches.
std::size_t grid_cells(const Range& range) {
  return range.size == 0
             ? 0
             : kernels::sum_chunks(range.end()) - range.offset / kSumChunk;
}

// The range cut at the grid.
std::vector<Range> cut_at_grid(const Range& range) {
  std::vector<Range> cells;
  for (std::size_t at = range.offset; at < range.end();) {
    const std::size_t next =
        std::min(range.end(), (at / kSumChunk + 1) * kSumChunk);
    cells.push_back({at, next - at});
    at = next;
  }
  return cells;
}

}  // namespace

std::vector<double> Section::squares(ThreadPool& pool) {
  // What one thread takes: enough to cost nothing, and on the grid.
  constexpr std::size_t kPart = 64 * kSumChunk;
  struct Job {
    ConstView values;
    std::size_t first;  // sum
  };
  std::vector<Job> jobs;
  std::size_t sums = 0;
  const auto add = [&](ConstView values) {
    jobs.push_back({values, sums});
    sums += kernels::sum_chunks(values.size());
  };
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b) {
    const Range range = own(b);
    const ConstView values = gradients_.piece(b);
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
  return all;
}

std::size_t Section::num_squares(int rank) const {
  std::size_t cells = 0;
  for (const Bucket& bucket : shards_.buckets())
    cells += grid_cells(bucket.pieces[static_cast<std::size_t>(rank)]);
  return cells;
}

double Section::sum_in_order(
    std::span<const std::span<const double>> squares) const {
  std::vector<std::size_t> next(squares.size());
  double total = 0;
  for (const Bucket& bucket : shards_.buckets())
    for (std::size_t r = 0; r < squares.size(); ++r)
      for (std::size_t c = grid_cells(bucket.pieces[r]); c > 0; --c)
        total += squares[r][next[r]++];
  return total;
}

std::int64_t Section::first_nonfinite() {
  std::int64_t first = -1;
  for (const Fragment& fragment : fragments_) {
    const auto index = static_cast<std::int64_t>(fragment.parameter);
    if (first >= 0 && index >= first) continue;
    if (!std::isfinite(kernels::sum_of_squares(array(fragment, "grad"))))
      first = index;
  }
  return first;
}

std::vector<Range> Section::cells_of(const Fragment& fragment) const {
  return cut_at_grid(
      {layout_.parameters()[fragment.parameter].offset + fragment.range.offset,
       fragment.range.size});
}

// Sums over whole parameters, of which other ranks have parts: cell by cell,
// added in flat order, so that they do not depend on who has which.
void Section::measure(std::int64_t step, float grad_scale, ThreadPool& pool,
                      optim::StepMeter& meter) {
  // What one thread takes: neighbours in one piece.
  constexpr std::size_t kMostCells = 64;
  struct Run {
    std::size_t bucket;
    Range part;  // of the piece
    std::size_t first_cell;
    std::size_t num_cells;
  };
  std::vector<optim::NormCell> cells;
  std::vector<Run> runs;
  std::size_t b = 0;
  for (std::size_t f = 0; f < fragments_.size(); ++f)
    for (const Range& flat : cells_of(fragments_[f])) {
      while (own(b).end() <= flat.offset || own(b).size == 0) ++b;
      const std::size_t at = flat.offset - own(b).offset;
      if (runs.empty() || runs.back().bucket != b ||
          runs.back().num_cells == kMostCells)
        runs.push_back({b, {at, 0}, cells.size(), 0});
      runs.back().part.size += flat.size;
      ++runs.back().num_cells;
      cells.push_back({f, {position(b) + at, flat.size}});
    }
  std::vector<optim::NormSums> own_sums(cells.size());
  pool.for_each(runs.size(), [&](std::size_t r) {
    const Run& run = runs[r];
    rule_->measure(step,
                   std::span(cells).subspan(run.first_cell, run.num_cells),
                   arrays(run.bucket, run.part, grad_scale),
                   std::span(own_sums).subspan(run.first_cell, run.num_cells));
  });

  constexpr std::size_t kDoubles = sizeof(optim::NormSums) / sizeof(double);
  std::vector<std::size_t> counts(static_cast<std::size_t>(comm_.size()));
  std::vector<std::size_t> next(counts.size());  // of a rank's sums
  std::size_t total = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    next[r] = total;
    for (const Fragment& fragment : shards_.fragments(static_cast<int>(r)))
      total += cells_of(fragment).size();
    counts[r] = (total - next[r]) * kDoubles;
  }
  std::vector<optim::NormSums> sums(total);
  meter.waiting([&] {
    comm_.all_gather(
        ConstView(own_sums.data(), own_sums.size() * kDoubles, DType::kFloat64),
        View(sums.data(), sums.size() * kDoubles, DType::kFloat64), counts);
  });
  std::vector<optim::NormSums> of_parameter(layout_.parameters().size());
  for (std::size_t p = 0; p < of_parameter.size(); ++p)
    for (const Fragment& fragment : shards_.fragments_of(p))
      for (std::size_t c = cells_of(fragment).size(); c > 0; --c)
        of_parameter[p] +=
            sums[next[static_cast<std::size_t>(fragment.owner)]++];
  std::vector<optim::NormSums> of_fragment;
  for (const Fragment& fragment : fragments_)
    of_fragment.push_back(of_parameter[fragment.parameter]);
  rule_->set_norms(step, of_fragment);
}

}  // namespace thinwire::shard
