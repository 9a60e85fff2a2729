// SPDX-License-Identifier: Apache-2.0
#include "optim/lamb_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "optim/norm_cells.h"
#include "optim/saved_state.h"
#include "optim/step_pieces.h"
#include "thinwire/kernels/lamb.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

LambCoefficients::LambCoefficients(const OnebitLambOptions& options,
                                   std::size_t count)
    : last(count),
      averages(count),
      num_averaged(count),
      last_factors(count, 1),
      beta_(options.coeff_beta),
      factor_max_(options.factor_max),
      factor_min_(options.factor_min),
      factor_threshold_(options.factor_threshold) {}

void LambCoefficients::average(std::size_t i, double trust_ratio) {
  averages[i] = beta_ * averages[i] + (1 - beta_) * trust_ratio;
  ++num_averaged[i];
}

double LambCoefficients::factor(std::size_t i, double drift, double decayed,
                                bool has_decay) {
  double factor = drift;
  if (has_decay) factor = factor * decayed + (1.0 - decayed);
  factor = std::min(factor, factor_max_);
  factor = std::max(factor, factor_min_);
  factor = std::min(factor, last_factors[i] * (1.0 + factor_threshold_));
  factor = std::max(factor, last_factors[i] * (1.0 - factor_threshold_));
  last_factors[i] = factor;
  return factor;
}

double LambCoefficients::corrected_average(std::size_t i) const {
  if (num_averaged[i] == 0) return 1;
  return averages[i] /
         (1 - std::pow(beta_, static_cast<double>(num_averaged[i])));
}

void LambCoefficients::add_to(State& state) const {
  state.add_parameters("lamb_coeffs", last);
  state.add_parameters("lamb_coeff_freeze", averages);
  state.add_parameters("lamb_coeff_count", num_averaged);
  state.add_parameters("last_factor", last_factors);
}

LambCoefficients LambCoefficients::read(const StateDict& state) const {
  const std::size_t count = last.size();
  LambCoefficients read = *this;
  const auto ratios = [&](const char* name) {
    return saved_values<double>(state, name, count, Sign::kNotNegative);
  };
  read.last = ratios("lamb_coeffs");
  read.averages = ratios("lamb_coeff_freeze");
  read.num_averaged =
      saved_values<std::int64_t>(state, "lamb_coeff_count", count);
  for (const std::int64_t averaged : read.num_averaged)
    require_count("lamb_coeff_count", averaged);
  read.last_factors = ratios("last_factor");
  return read;
}

// Adds up group by group, as DeepSpeed does.
std::vector<double> common_size_scales(std::span<const double> rms,
                                       const ParameterLayout& layout) {
  const auto parameters = layout.parameters();
  std::vector<double> sums(layout.num_groups());
  double counted = 0;
  for (std::size_t i = 0; i < rms.size(); ++i) {
    sums[parameters[i].group] += rms[i];
    if (rms[i] > 0) ++counted;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  std::vector<double> scales;
  for (const double own : rms)
    scales.push_back(own > 0 ? total / counted / own : 1);
  return scales;
}

namespace {

// Parameters of up to this many cells stay in the cache between the two passes.
// Larger parameters are divided into parts of this size.
constexpr std::size_t kPartCells = 64;

using Cells = std::span<const NormCell>;

Range range_of(Cells cells) {
  const std::size_t begin = cells.front().range.offset;
  return {begin, cells.back().range.end() - begin};
}

// Returns the cells of one kernel call. They belong to one parameter, and all
// of them except the first and the last are whole.
Cells first_run(Cells cells) {
  std::size_t n = 1;
  while (n < cells.size() && cells[n].parameter == cells[0].parameter &&
         (n == 1 || cells[n - 1].range.size == kernels::kSumChunk))
    ++n;
  return cells.first(n);
}

// Units of work: adjacent small parameters that fit together into a part, or
// one large parameter.
struct Units {
  std::vector<Cells> small;
  std::vector<Cells> large;
};

Units units_of(Cells cells) {
  Units units;
  std::size_t begin = 0;  // of the unit that is being filled
  const auto end_small = [&](std::size_t end) {
    if (begin < end) units.small.push_back(cells.subspan(begin, end - begin));
  };
  for (std::size_t i = 0; i < cells.size();) {
    std::size_t end = i;
    while (end < cells.size() && cells[end].parameter == cells[i].parameter)
      ++end;
    if (end - begin > kPartCells) {
      end_small(i);
      begin = i;
    }
    if (end - i > kPartCells) {
      units.large.push_back(cells.subspan(i, end - i));
      begin = end;
    }
    i = end;
  }
  end_small(cells.size());
  return units;
}

std::vector<Cells> parts_of(Cells cells) {
  std::vector<Cells> parts;
  for (std::size_t at = 0; at < cells.size(); at += kPartCells)
    parts.push_back(cells.subspan(at, std::min(kPartCells, cells.size() - at)));
  return parts;
}

}  // namespace

void require_trust_limits(TrustLimits limits, std::string_view min_name,
                          std::string_view max_name) {
  const auto [min, max] = limits;
  require(std::isfinite(min) && min >= 0, min_name, "finite and >= 0", min);
  require(std::isfinite(max) && max > 0 && max >= min, max_name,
          fmt::format("finite, > 0 and >= {} = {}", min_name, min), max);
}

std::string describe(std::span<const TrustLimits> limits) {
  std::string text;
  for (const auto& [min, max] : limits)
    fmt::format_to(std::back_inserter(text), "{}min_coeff={} max_coeff={}",
                   text.empty() ? "" : ", ", min, max);
  return text;
}

TrustRatio trust_ratio(double params, double update, double min_coeff,
                       double max_coeff) {
  if (params == 0 || update == 0) return {};
  return {std::clamp(params / update, min_coeff, max_coeff), true};
}

TrustRatio trust_ratio(const NormSums& sums, TrustLimits limits) {
  return trust_ratio(std::sqrt(sums.params), std::sqrt(sums.update),
                     limits.min_coeff, limits.max_coeff);
}

LambStep::LambStep(Adam& adam, std::int64_t step, float grad_scale)
    : adam_(adam) {
  for (std::size_t g = 0; g < adam.num_groups(); ++g)
    coefficients_.push_back(adam.coefficients(g, step, grad_scale));
}

kernels::AdamArrays LambStep::at(Range range,
                                 const UpdateArrays& arrays) const {
  return {.params = arrays.params.as<float>().data(),
          .exp_avg = adam_.exp_avg().as<float>().data() + range.offset,
          .exp_avg_sq = adam_.exp_avg_sq().as<float>().data() + range.offset,
          .grads = arrays.grads,
          .low_precision = arrays.low_precision};
}

void LambStep::measure(std::span<const NormCell> cells,
                       const UpdateArrays& arrays,
                       std::span<NormSums> sums) const {
  std::vector<kernels::LambSums> run_sums;
  for (std::size_t i = 0, done = 0; i < cells.size();) {
    const std::span<const NormCell> run = first_run(cells.subspan(i));
    const Range range = range_of(run);
    const Parameter& p = adam_.layout().parameters()[run.front().parameter];
    run_sums.resize(run.size());
    kernels::lamb_moments(at(range, part_of(arrays, {done, range.size})),
                          coefficients_[p.group], run.front().range.size,
                          run_sums);
    for (const kernels::LambSums& sum : run_sums)
      sums[i++] = {sum.params, sum.update};
    done += range.size;
  }
}

void LambStep::update(Range part, const UpdateArrays& arrays,
                      std::span<const TrustRatio> ratios) const {
  const auto parameters = adam_.layout().parameters();
  for (std::size_t done = 0; done < part.size;) {
    const std::size_t begin = part.offset + done;
    const Parameter& p = adam_.layout().parameter_at(begin);
    const std::size_t size =
        std::min(p.offset + p.size - begin, part.size - done);
    const TrustRatio& ratio =
        ratios[static_cast<std::size_t>(&p - parameters.data())];
    kernels::AdamCoefficients c = coefficients_[p.group];
    c.minus_learning_rate =
        static_cast<float>(-adam_.learning_rate(p.group) * ratio.value);
    kernels::lamb_update(at({begin, size}, part_of(arrays, {done, size})), c);
    done += size;
  }
}

std::vector<TrustRatio> lamb_step(Adam& adam, std::int64_t step,
                                  const UpdateArrays& arrays,
                                  std::span<const TrustLimits> limits,
                                  ThreadPool& pool) {
  const LambStep lamb(adam, step, arrays.grad_scale);
  std::vector<TrustRatio> ratios(adam.layout().parameters().size());
  const auto measure = [&](Cells cells, std::span<NormSums> sums) {
    lamb.measure(cells, part_of(arrays, range_of(cells)), sums);
  };
  const auto set_ratios = [&](Cells cells, std::span<const NormSums> sums) {
    for (std::size_t i = 0; i < cells.size();) {
      const std::size_t parameter = cells[i].parameter;
      kernels::ChunkTotal<NormSums> total;
      for (; i < cells.size() && cells[i].parameter == parameter; ++i)
        total.add(cells[i].range.offset / kernels::kSumChunk, sums[i]);
      const std::size_t group = adam.layout().parameters()[parameter].group;
      ratios[parameter] = trust_ratio(total.total(), limits[group]);
    }
  };
  const auto update = [&](Cells cells) {
    const Range part = range_of(cells);
    lamb.update(part, part_of(arrays, part), ratios);
  };

  const std::vector<NormCell> cells = norm_cells(adam.layout());
  const Units units = units_of(cells);
  pool.for_each(units.small.size(), [&](std::size_t k) {
    std::vector<NormSums> sums(units.small[k].size());
    measure(units.small[k], sums);
    set_ratios(units.small[k], sums);
    update(units.small[k]);
  });
  for (const Cells unit : units.large) {
    std::vector<NormSums> sums(unit.size());
    const std::vector<Cells> parts = parts_of(unit);
    pool.for_each(parts.size(), [&](std::size_t k) {
      measure(parts[k],
              std::span(sums).subspan(k * kPartCells, parts[k].size()));
    });
    set_ratios(unit, sums);
    pool.for_each(parts.size(), [&](std::size_t k) { update(parts[k]); });
  }
  return ratios;
}

}  // namespace thinwire::optim
