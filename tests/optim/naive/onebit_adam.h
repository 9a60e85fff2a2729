// SPDX-License-Identifier: Apache-2.0
// 1-bit Adam in plain loops: see naive.h.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "optim/naive/frozen.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::test::naive {

/// With a fixed freeze and no group that stays exact.
/// Ranks hold the same parameters after every step, so there is one copy.
class OnebitAdam {
 public:
  OnebitAdam(int world, const ParameterLayout& layout,
             const optim::OnebitAdamOptions& o, Floats start)
      : freeze_step_(optim::freeze_step_of(o)),
        refresh_every_(o.variance_refresh),
        setup_(setup_of(world, layout, o)),
        gradients_(setup_),
        bits_(setup_),
        p_(std::move(start)),
        m_(layout.size()),
        v_(layout.size()) {}

  /// False: skipped.
  bool step(const std::vector<Floats>& grads) {
    counts = {};
    if (t_ >= freeze_step_) {
      const auto clip = gradients_.compressed(grads);
      if (clip) compressed_step(grads, *clip);
      return clip.has_value();
    }
    const auto average = gradients_.exact(grads);
    if (!average) return false;
    exact_step(average->sum, average->scale);
    if (t_ == freeze_step_) freeze();
    return true;
  }

  [[nodiscard]] const Floats& params(int /*rank*/) const { return p_; }
  [[nodiscard]] const Floats& variance() const { return v_; }
  [[nodiscard]] optim::AdamOptions& group(std::size_t g) {
    return setup_.groups[g];
  }
  void synchronize() {}
  Counts counts;  ///< Of the last step, if it was a compressed one.

 private:
  void exact_step(const Floats& sum, float scale) {
    ++t_;
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers(setup_.groups[param.group], t_, t_);
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i) {
        const float g = sum[i] * scale;
        m_[i] = k.momentum(m_[i], g);
        v_[i] = k.variance(v_[i], g);
        move(i, k, k.denominator(v_[i]));
      }
    }
  }

  // Its bias goes out of the variance once, here.
  void freeze() {
    frozen_.emplace(setup_, t_, m_, v_, 10);
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers(setup_.groups[param.group], t_, t_);
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i)
        v_[i] = v_[i] * k.v_scale;
    }
  }

  void compressed_step(const std::vector<Floats>& grads, double clip) {
    ++t_;
    const std::vector<std::size_t> revived = frozen_->revive(grads);
    for (const std::size_t i : revived) {
      m_[i] = 0;
      v_[i] = frozen_->denominator[i] * frozen_->denominator[i];
    }
    counts = frozen_->counts();
    counts.revived = revived.size();
    std::vector<Floats> x = frozen_->inputs(grads, clip);
    if (refresh_every_ > 0 && (t_ - freeze_step_) % refresh_every_ == 0)
      return refresh(x);
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers(setup_.groups[param.group], t_, t_);
      for (Floats& of_rank : x)
        for (std::size_t i = param.offset; i < param.offset + param.size; ++i)
          of_rank[i] = k.momentum(m_[i], of_rank[i]);
    }
    m_ = bits_.mean(x, frozen_->active);
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers(setup_.groups[param.group], t_, t_);
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i)
        move(i, k, frozen_->denominator[i]);
    }
  }

  // The gradient is exchanged; the variance has stood still since the last
  // time, and moves where there is a gradient.
  void refresh(const std::vector<Floats>& x) {
    Floats g = x[0];
    if (setup_.world > 1) g = bits_.mean_in_4_bits(x, frozen_->active);
    const auto numbers_of = [this](const Parameter& param) {
      const optim::AdamOptions& group = setup_.groups[param.group];
      Numbers k = numbers(group, t_, t_);
      const double beta2 =
          std::pow(group.beta2, static_cast<double>(refresh_every_));
      k.beta2 = static_cast<float>(beta2);
      k.one_minus_beta2 = static_cast<float>(1 - beta2);
      return k;
    };
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers_of(param);
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i) {
        if (frozen_->active[i] == 0) g[i] = m_[i] = 0;
        m_[i] = k.momentum(m_[i], g[i]);
        if (g[i] != 0) v_[i] = k.variance(v_[i], g[i]);
      }
    }
    frozen_->follow(v_);
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers_of(param);
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i)
        move(i, k, frozen_->denominator[i]);
    }
  }

  void move(std::size_t i, const Numbers& k, float d) {
    const auto step = static_cast<float>(-k.learning_rate);
    p_[i] = p_[i] + step * k.update(m_[i], d, p_[i]);
  }

  std::int64_t freeze_step_;
  std::int64_t refresh_every_;
  Setup setup_;
  Gradients gradients_;
  OneBit bits_;
  Floats p_, m_, v_;
  std::int64_t t_ = 0;
  std::optional<Frozen> frozen_;
};

}  // namespace thinwire::test::naive
