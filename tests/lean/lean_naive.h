// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam's compression stage in plain loops: optim/naive/naive.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "optim/naive/naive.h"
#include "thinwire/kernels/denominator_codes.h"
#include "thinwire/lean/lean_onebit_adam.h"

namespace thinwire::test::naive {

inline float median(Floats values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Residuals are bf16 unless the options name their type.
inline lean::LeanOnebitAdamOptions with_residuals(
    lean::LeanOnebitAdamOptions o) {
  if (!o.compression.residual_dtype)
    o.compression.residual_dtype = DType::kBFloat16;
  return o;
}

/// `setup` as it is for `layout`, whose parameters' cells are parameters.
inline ParameterLayout cells_as_parameters(const ParameterLayout& layout) {
  std::vector<ParameterSpec> specs;
  for (const Parameter& p : layout.parameters())
    for (std::size_t at = p.offset; at < p.offset + p.size;) {
      const std::size_t end =
          std::min(p.offset + p.size, (at / 1024 + 1) * 1024);
      specs.push_back({p.name + "@" + std::to_string(at), {end - at}, p.group});
      at = end;
    }
  return ParameterLayout::of(std::move(specs), layout.num_groups());
}

/// From the end of step t, the last exact one, on; ranks hold the same.
class Lean {
 public:
  struct Begin {
    std::int64_t t = 0;
    Floats params, m, v;
    Gradients gradients;  ///< That have seen the exact steps.
  };
  Lean(int world, const ParameterLayout& layout,
       const lean::LeanOnebitAdamOptions& o, Begin begin)
      : params(std::move(begin.params)),
        most_((1 << o.denominator_bits) - 2),
        setup_(setup_of(world, cells_as_parameters(layout), with_residuals(o))),
        gradients_(std::move(begin.gradients)),
        bits_(setup_),
        t_(begin.t),
        m_(std::move(begin.m)),
        inverse_(layout.size()),
        ratio_(layout.size(), 1.0f),
        active_(layout.size()),
        sleeping_(layout.size()) {
    for (const Parameter& cell : setup_.layout.parameters()) {
      Cell& added = cells_.emplace_back();
      added.range = {cell.offset, cell.size};
      added.group = cell.group;
      for (std::size_t p = 0; p < layout.parameters().size(); ++p)
        if (layout.parameters()[p].size > 0 &&
            layout.parameters()[p].offset <= cell.offset)
          added.parameter = p;
    }
    make_denominators(begin.v);
    for (std::size_t i = 0; i < m_.size(); ++i)
      m_[i] = active_[i] != 0 ? m_[i] * ratio_[i] : 0;
    if (world > 1) m_ = bits_.share(m_, active_);
  }

  /// False: skipped.
  bool step(const std::vector<Floats>& grads) {
    const auto clip = gradients_.compressed(grads);
    if (!clip) return false;
    ++t_;
    wake(grads);
    std::vector<Floats> x = inputs(grads, *clip);
    for (const Cell& cell : cells_) {
      const Numbers k = numbers(setup_.groups[cell.group], t_, t_);
      for (Floats& of_rank : x)
        for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i)
          of_rank[i] = k.momentum(m_[i], of_rank[i]);
    }
    m_ = bits_.mean(x, active_);
    masked = heavy = 0;
    for (const Cell& cell : cells_) {
      const Numbers k = numbers(setup_.groups[cell.group], t_, t_);
      for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i) {
        float u = active_[i] != 0 ? (m_[i] * k.m_scale) * inverse_[i] : 0;
        if (k.decay != 0) u = u + k.decay * params[i];
        params[i] = params[i] + static_cast<float>(-k.learning_rate) * u;
        masked += active_[i] == 0 ? 1 : 0;
        heavy += ratio_[i] != 1 ? 1 : 0;
      }
    }
    return true;
  }

  Floats params;
  std::size_t masked = 0, heavy = 0, revived = 0;  ///< Of the last step.

 private:
  struct Cell {
    Range range;
    std::size_t parameter = 0;
    std::size_t group = 0;
    bool is_live = false;
    float median = 0, floor = 0, low = 0, step = 0;
  };

  void make_denominators(const Floats& v) {
    Floats d(v.size());
    for (Cell& cell : cells_) {
      const Numbers k = numbers(setup_.groups[cell.group], t_, t_);
      for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i) {
        d[i] = k.denominator(v[i]);
        const bool wanted = setup_.mask[i] != 0;
        sleeping_[i] = wanted && v[i] == 0 ? 1 : 0;
        active_[i] = wanted && v[i] != 0 && std::isfinite(d[i]) ? 1 : 0;
        cell.is_live = cell.is_live || active_[i] != 0;
      }
      if (cell.is_live) fit(cell, d);
    }
    fill_dead_cells();
    for (const Cell& cell : cells_)
      for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i)
        if (active_[i] != 0) inverse_[i] = inverse(cell, d[i]);
  }

  // Cuts heavy elements, raises to the floor, and finds the range.
  void fit(Cell& cell, Floats& d) {
    Floats live;
    for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i)
      if (active_[i] != 0) live.push_back(d[i]);
    cell.median = median(live);
    const float most = 10 * cell.median;
    std::vector<double> squares;
    for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i) {
      if (active_[i] != 0 && d[i] > most) {
        ratio_[i] = most / d[i];
        d[i] = most;
      }
      squares.push_back(active_[i] != 0 ? double{d[i]} * d[i] : 0);
    }
    cell.floor = static_cast<float>(
        setup_.denom_floor *
        std::sqrt(sum(squares) / static_cast<double>(live.size())));
    float least = INFINITY, largest = 0;
    for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i) {
      if (active_[i] == 0) continue;
      d[i] = std::max(d[i], cell.floor);
      least = std::min(least, d[i]);
      largest = std::max(largest, d[i]);
    }
    cell.low = static_cast<float>(kernels::log2(least));
    cell.step = std::max(
        0.0f, static_cast<float>((kernels::log2(largest) - cell.low) / most_));
  }

  void fill_dead_cells() {
    for (Cell& cell : cells_) {
      if (cell.is_live) continue;
      Floats of_parameter, of_model;
      for (const Cell& other : cells_) {
        if (!other.is_live) continue;
        of_model.push_back(other.median);
        if (other.parameter == cell.parameter)
          of_parameter.push_back(other.median);
      }
      cell.median = !of_parameter.empty() ? median(of_parameter)
                    : !of_model.empty()   ? median(of_model)
                                          : 1;
      cell.floor = static_cast<float>(setup_.denom_floor * cell.median);
      cell.low =
          static_cast<float>(kernels::log2(std::max(cell.median, cell.floor)));
    }
  }

  // Returns the value used for 1 / d.
  float inverse(const Cell& cell, float d) const {
    double k = 0;
    if (cell.step != 0)
      k = std::clamp(std::nearbyint((kernels::log2(d) - cell.low) / cell.step),
                     0.0, static_cast<double>(most_));
    const auto tens = static_cast<float>(static_cast<int>(k) / 16 * 16);
    const auto ones = static_cast<float>(static_cast<int>(k) % 16);
    return kernels::inverse_power_of_2(cell.low + tens * cell.step) *
           kernels::inverse_power_of_2(ones * cell.step);
  }

  void wake(const std::vector<Floats>& grads) {
    revived = 0;
    for (const Cell& cell : cells_)
      for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i) {
        const bool wakes =
            sleeping_[i] != 0 &&
            std::any_of(grads.begin(), grads.end(),
                        [i](const Floats& g) { return g[i] != 0; });
        if (!wakes) continue;
        sleeping_[i] = 0;
        active_[i] = 1;
        m_[i] = 0;
        inverse_[i] = inverse(cell, std::max(cell.median, cell.floor));
        ++revived;
      }
  }

  std::vector<Floats> inputs(const std::vector<Floats>& grads,
                             double clip) const {
    std::vector<Floats> x = grads;
    for (Floats& values : x)
      for (const Cell& cell : cells_) {
        const double most = 1 / std::sqrt(1 - setup_.groups[cell.group].beta2);
        const double limit = most * 10 * cell.median;
        for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i)
          values[i] *= ratio_[i];
        const double squares = sum_of_squares(values, cell.range) * clip * clip;
        for (std::size_t i = cell.range.offset; i < cell.range.end(); ++i) {
          if (squares > limit * limit && active_[i] != 0) {
            const float d = 1.0f / inverse_[i];
            const auto bound = static_cast<float>(most / clip * d);
            values[i] = std::min(std::max(values[i], -bound), bound);
          }
          values[i] *= static_cast<float>(clip);
        }
      }
    return x;
  }

  int most_;     // steps between codes
  Setup setup_;  // a parameter per cell
  std::vector<Cell> cells_;
  Gradients gradients_;
  OneBit bits_;
  std::int64_t t_;
  Floats m_;
  Floats inverse_, ratio_;
  Flags active_, sleeping_;
};

}  // namespace thinwire::test::naive
