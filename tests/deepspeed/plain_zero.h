// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's ZeRO-1/2 once more, element by element for all ranks at once,
// without slices but where the norm needs them: written from the description of
// its arithmetic, not from deepspeed::ZeroOptimizer.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/deepspeed/loss_scaler.h"
#include "thinwire/deepspeed/zero_optimizer.h"
#include "thinwire/optim/adam.h"
#include "thinwire/precision/loss_scaler.h"

namespace thinwire::test {

inline float rounded(float value, DType dtype) {
  if (dtype == DType::kFloat16) return to_float(to_half(value));
  if (dtype == DType::kBFloat16) return to_float(to_bfloat16(value));
  return value;
}

class PlainZero {
 public:
  /// [rank][element]
  using Grads = std::vector<std::vector<float>>;

  PlainZero(int world, ParameterLayout layout, optim::AdamOptions rule,
            deepspeed::ZeroOptions options, std::vector<float> initial)
      : world_(static_cast<std::size_t>(world)),
        layout_(std::move(layout)),
        rule_(std::move(rule)),
        options_(std::move(options)),
        scaler_(deepspeed::loss_scaler(
            deepspeed::zero_loss_scaler(options_.loss_scale))),
        masters(std::move(initial)),
        exp_avg(masters.size()),
        exp_avg_sq(masters.size()) {
    rule_.groups.resize(layout_.num_groups());
  }

  /// One step with the gradients of one backward after the other.
  bool step(const std::vector<Grads>& backwards) {
    const std::vector<float> mean = averaged(backwards);
    const bool overflow = std::any_of(
        mean.begin(), mean.end(), [](float g) { return !std::isfinite(g); });
    const double before = loss_scale();
    if (options_.dtype == DType::kFloat16) scaler_.update(overflow);
    if (overflow) return false;
    const float total = norm(mean);
    reported_norm = total / static_cast<float>(before);
    const auto scale = static_cast<float>(loss_scale());
    float combined = scale;
    if (options_.exchange.max_grad_norm > 0) {
      const float clip = (total / scale + 1e-6f) /
                         static_cast<float>(options_.exchange.max_grad_norm);
      combined = std::max(1.0f, clip) * scale;
    }
    ++steps_;
    for (const Parameter& p : layout_.parameters())
      for (std::size_t i = p.offset; i < p.offset + p.size; ++i)
        update(i, mean[i] * (1 / combined), rule_.groups[p.group]);
    return true;
  }

  [[nodiscard]] double loss_scale() const {
    return options_.dtype == DType::kFloat16 ? scaler_.scale() : 1;
  }

 private:
  // Returns the sum of one rank's backwards in stage 1.
  [[nodiscard]] std::vector<float> averaged(
      const std::vector<Grads>& backwards) const {
    const DType dtype = options_.dtype;
    if (options_.stage == 2) {
      std::vector<float> sum = mean_of(backwards[0]);
      for (std::size_t b = 1; b < backwards.size(); ++b) {
        const std::vector<float> next = mean_of(backwards[b]);
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] = rounded(sum[i] + next[i], dtype);
      }
      return sum;
    }
    Grads sums = backwards[0];
    for (std::size_t b = 1; b < backwards.size(); ++b)
      for (std::size_t r = 0; r < world_; ++r)
        for (std::size_t i = 0; i < sums[r].size(); ++i)
          sums[r][i] = rounded(sums[r][i] + backwards[b][r][i],
                               options_.accumulation_dtype);
    for (auto& of_rank : sums)
      for (float& g : of_rank) g = rounded(g, dtype);
    return mean_of(sums);
  }

  [[nodiscard]] std::vector<float> mean_of(const Grads& grads) const {
    const DType dtype = options_.dtype;
    const DType wire = options_.communication_dtype.value_or(dtype);
    std::vector<float> mean(layout_.size());
    for (std::size_t i = 0; i < mean.size(); ++i) {
      float sum = 0;
      for (std::size_t r = 0; r < world_; ++r) {
        float value = grads[r][i];
        if (options_.reduce_scatter)
          value = rounded(value / static_cast<float>(world_), dtype);
        value = rounded(value, wire);
        sum = r == 0 ? value : rounded(sum + value, wire);
      }
      if (!options_.reduce_scatter)
        sum = rounded(
            sum * static_cast<float>(1.0 / static_cast<double>(world_)), wire);
      mean[i] = rounded(sum, dtype);
    }
    return mean;
  }

  // A group's parameters in the order in which DeepSpeed flattens them.
  [[nodiscard]] std::vector<Parameter> order(std::size_t group) const {
    std::vector<Parameter> members;
    for (const Parameter& p : layout_.parameters())
      if (p.group == group) members.push_back(p);
    if (!options_.round_robin) return members;
    std::vector<Parameter> result;
    for (std::size_t turn = 0; turn < world_; ++turn)
      for (std::size_t i = 0; i < members.size(); ++i)
        if (i % world_ == turn) result.push_back(members[i]);
    return result;
  }

  [[nodiscard]] float norm(const std::vector<float>& mean) const {
    float total = 0;
    for (std::size_t g = 0; g < layout_.num_groups(); ++g) {
      std::size_t elements = 0;
      for (const Parameter& p : order(g)) elements += p.size;
      const std::size_t unit = 2 * world_;
      const std::size_t slice = (elements + unit - 1) / unit * unit / world_;
      float sum = 0;
      for (std::size_t r = 0; r < world_; ++r) {
        double of_rank = 0;
        std::size_t at = 0;
        for (const Parameter& p : order(g)) {
          double squares = 0;
          for (std::size_t i = 0; i < p.size; ++i, ++at)
            if (at >= r * slice && at < (r + 1) * slice)
              squares +=
                  static_cast<double>(mean[p.offset + i]) * mean[p.offset + i];
          const double of_slice = std::sqrt(squares);
          of_rank += of_slice * of_slice;
        }
        sum += static_cast<float>(of_rank);
      }
      const float of_group = std::sqrt(sum);
      total += of_group * of_group;
    }
    return std::sqrt(total);
  }

  void update(std::size_t i, float g, const optim::AdamGroup& group) {
    const double lr = group.learning_rate.value_or(rule_.learning_rate);
    const double b1 = group.beta1.value_or(rule_.beta1);
    const double b2 = group.beta2.value_or(rule_.beta2);
    const double decay = group.weight_decay.value_or(rule_.weight_decay);
    const double eps = group.epsilon.value_or(rule_.epsilon);
    const auto t = static_cast<double>(steps_);
    const auto f = [](double x) { return static_cast<float>(x); };
    float& p = masters[i];
    float& m = exp_avg[i];
    float& v = exp_avg_sq[i];
    if (rule_.decoupled_decay)
      p *= f(1 - lr * decay);
    else if (decay != 0)
      g += f(decay) * p;
    m = m * f(b1) + f(1 - b1) * g;
    v = v * f(b2) + (f(1 - b2) * g) * g;
    const float d = std::sqrt(v) / f(std::sqrt(1 - std::pow(b2, t))) + f(eps);
    p += (f(-lr / (1 - std::pow(b1, t))) * m) / d;
  }

  std::size_t world_;
  ParameterLayout layout_;
  optim::AdamOptions rule_;
  deepspeed::ZeroOptions options_;
  precision::LossScaler scaler_;
  std::int64_t steps_ = 0;

 public:
  std::vector<float> masters;
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
  float reported_norm = 0;
};

}  // namespace thinwire::test
