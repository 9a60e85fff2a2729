// SPDX-License-Identifier: Apache-2.0
// The algorithms of docs/algorithms.md a second time: all ranks in one place,
// one element after the other, no buckets, no bits, no kernels. Operations are
// rounded to float in the order that include/thinwire/kernels documents, so
// results are compared bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "support/naive_codes.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/exchange/compressed_all_reduce.h"
#include "thinwire/optim/adam.h"

namespace thinwire::test::naive {

using Floats = std::vector<float>;
/// Not vector<bool>, whose elements are no objects.
using Flags = std::vector<char>;

/// Sum in double in the order of kernels/norm.h.
double sum(const std::vector<double>& terms);
double sum_of_squares(const Floats& values);
/// The same for the elements of `range`.
double sum_of_squares(const Floats& values, Range range);
/// Likewise, cut where the array's chunks end.
double sum_of_cells(const Floats& values, Range range);

/// Pieces of at most 1024 elements, none across two parameters.
std::vector<Range> blocks(const ParameterLayout& layout);

/// The options that all optimizers have, per group, and who takes part.
struct Setup {
  int world = 1;
  ParameterLayout layout;
  std::vector<optim::AdamOptions> groups;  ///< Every field filled in.
  Floats mask;                             ///< Flat; empty: 1 everywhere.
  double denom_floor = 0;
  double max_grad_norm = 0;
  bool lagged_clipping = false;
  bool bf16_residuals = false;
};

template <class Options>
Setup setup_of(int world, const ParameterLayout& layout, const Options& o) {
  Setup setup{.world = world, .layout = layout, .groups = {}, .mask = {}};
  constexpr bool compresses = requires { o.compression; };
  if constexpr (compresses) {
    setup.denom_floor = o.compression.denom_floor;
    setup.max_grad_norm = o.compression.exchange.max_grad_norm;
    setup.lagged_clipping = o.compression.exchange.lagged_clipping;
    setup.bf16_residuals = o.compression.residual_dtype == DType::kBFloat16;
  }
  std::vector<Floats> masks(layout.num_groups());
  for (std::size_t g = 0; g < layout.num_groups(); ++g) {
    const auto own = o.groups.empty()
                         ? typename decltype(o.groups)::value_type{}
                         : o.groups[g];
    setup.groups.push_back(
        {.learning_rate = own.learning_rate.value_or(o.learning_rate),
         .beta1 = own.beta1.value_or(o.beta1),
         .beta2 = own.beta2.value_or(o.beta2),
         .epsilon = own.epsilon.value_or(o.epsilon),
         .weight_decay = own.weight_decay.value_or(o.weight_decay),
         .bias_correction = o.bias_correction,
         .epsilon_inside_sqrt = o.epsilon_inside_sqrt});
    if constexpr (compresses) masks[g] = own.exp_avg_mask;
  }
  // A mask lists its group's elements in layout order.
  std::vector<std::size_t> used(layout.num_groups());
  for (const Parameter& p : layout.parameters())
    for (std::size_t i = 0; i < p.size; ++i)
      setup.mask.push_back(
          masks[p.group].empty() ? 1.0f : masks[p.group][used[p.group]++]);
  return setup;
}

/// One group's numbers in one step, formed in double, rounded once.
struct Numbers {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  bool inside;
  float m_scale, v_scale;  ///< Bias corrections.
  float decay;
  double learning_rate;

  [[nodiscard]] float momentum(float m, float g) const;
  [[nodiscard]] float variance(float v, float g) const;
  [[nodiscard]] float denominator(float v) const;
  /// The update over d, with its decay.
  [[nodiscard]] float update(float m, float d, float p) const;
};
/// `m_steps` and `v_steps`: what the bias corrections count.
Numbers numbers(const optim::AdamOptions& o, std::int64_t m_steps,
                std::int64_t v_steps);

/// Rounding errors of every rank's values, and of their mean.
class Residuals {
 public:
  explicit Residuals(const Setup& setup) : setup_(setup) { clear(); }
  void clear();

  std::vector<Floats> worker_error;
  Floats server_error;

 protected:
  [[nodiscard]] float stored(float residual) const;

  Setup setup_;
};

class FewBits;

/// The compressed all-reduce.
class OneBit : public Residuals {
 public:
  using Residuals::Residuals;

  /// `x` of every rank; a rank alone gets its own back, 0 where masked.
  Floats mean(const std::vector<Floats>& x, const Flags& active);
  /// The servers' half alone: what they make of x, which they all know.
  Floats share(const Floats& x, const Flags& active);
  /// The residuals of gradients, as momenta have them: times 1 - beta1 and
  /// `clip`, and per element the unit of its momentum and its ratio.
  void inherit(const FewBits& from, double clip, const Floats& unit,
               const Floats& ratio, const Flags& active);
  /// Back into every rank's residual: what the exchange gave for `range`.
  void give_back(const Floats& mean, Range range, const Flags& active);

 private:
  // c becomes c - s q; returns s.
  float split(float* c, Range block, const Flags& active, Floats& signed_scale);
};

/// The average of gradients over 4 or 8 bits.
class FewBits : public Residuals {
 public:
  FewBits(const Setup& setup, int bits) : Residuals(setup), bits_(bits) {}
  Floats mean(const std::vector<Floats>& grads);

 private:
  // c becomes its error.
  NaiveCodes quantize(float* c, std::size_t size) const;

  int bits_;
};

/// What every optimizer does with the gradients of a step, before its own part.
class Gradients {
 public:
  explicit Gradients(const Setup& setup) : setup_(setup) {}

  /// Sum over the ranks and what to multiply it by; empty: skip the step.
  struct Average {
    Floats sum;
    float scale = 1;
    double clip = 1;
  };
  std::optional<Average> exact(const std::vector<Floats>& grads);
  /// The same over few bits.
  std::optional<Average> rounded(const std::vector<Floats>& grads,
                                 FewBits& bits);
  /// Notes an exact step by host, with every rank's: local rank l of host h is
  /// ranks[h * G + l]. What is remembered is what means of hosts would have
  /// had.
  void exact_by_host(const std::vector<Floats>& grads,
                     const std::vector<int>& ranks);
  /// By host compressed() is given means of hosts, and their squares are added
  /// up rank by rank, over the ranges that each has averaged.
  struct Averaged {
    std::size_t host = 0;
    std::vector<Range> ranges;
  };
  void set_averaged(std::vector<Averaged> by_rank) {
    averaged_ = std::move(by_rank);
  }
  /// Clip factor by the calibrated norm; empty: skip the step.
  std::optional<double> compressed(const std::vector<Floats>& grads);
  /// Of one rank alone; empty: not finite.
  [[nodiscard]] std::optional<double> local(const Floats& grads) const;

 private:
  [[nodiscard]] double clip(double norm) const;
  [[nodiscard]] double calibrated(double norm) const { return ratio_ * norm; }
  [[nodiscard]] std::optional<double> rms_norm(
      const std::vector<Floats>& grads) const;

  void remember(double norm, double rms);

  Setup setup_;
  std::vector<Averaged> averaged_;
  double ratio_ = 1;
  bool measured_ = false;
  double before_ = 0;  // lagged clipping: b
};

/// Parts that every low-bit optimizer has.
class LowBit {
 public:
  template <class Options>
  LowBit(int world, const ParameterLayout& layout, const Options& o,
         int warmup_bits)
      : setup_(setup_of(world, layout, o)), gradients_(setup_), bits_(setup_) {
    if (warmup_bits != 0 && world > 1) few_bits_.emplace(setup_, warmup_bits);
  }
  [[nodiscard]] optim::AdamOptions& group(std::size_t g) {
    return setup_.groups[g];
  }
  void synchronize() {}

 protected:
  /// Returns the average of an exact step.
  std::optional<Gradients::Average> average(const std::vector<Floats>& grads) {
    return few_bits_ ? gradients_.rounded(grads, *few_bits_)
                     : gradients_.exact(grads);
  }

  Setup setup_;
  Gradients gradients_;
  OneBit bits_;
  std::optional<FewBits> few_bits_;
};

}  // namespace thinwire::test::naive
