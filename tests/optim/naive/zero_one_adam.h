// SPDX-License-Identifier: Apache-2.0
// 0/1 Adam in plain loops: see naive.h.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "optim/naive/frozen.h"
#include "optim/naive/naive.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::test::naive {

class ZeroOneAdam : public LowBit {
 public:
  ZeroOneAdam(int world, const ParameterLayout& layout,
              const optim::ZeroOneAdamOptions& o, const Floats& start)
      : LowBit(world, layout, o, optim::zero_one_stages_of(o).warmup_bits),
        stages_(optim::zero_one_stages_of(o)),
        v_(layout.size()),
        lrs_(layout.num_groups()),
        decay_(layout.num_groups(), 1),
        group_of_(layout.size()) {
    for (int r = 0; r < world; ++r)
      ranks_.push_back({start, Floats(start.size()), Floats(start.size())});
    for (const Parameter& p : layout.parameters())
      for (std::size_t i = 0; i < p.size; ++i)
        group_of_[p.offset + i] = p.group;
  }

  /// Returns false if the step was skipped.
  bool step(const std::vector<Floats>& grads) {
    if (t_ >= stages_.var_freeze_step) return frozen_step(grads);
    if ((t_ + 1) % var_interval_ == 0) {
      const auto mean = average(grads);
      if (!mean) return false;
      variance_step(mean->sum, mean->scale);
      if (few_bits_) hand_over(mean->clip);
    } else {
      const auto clip = gradients_.compressed(grads);
      if (!clip) return false;
      one_bit_step(grads, *clip);
    }
    if (t_ == stages_.var_freeze_step) {
      bits_.clear();
      origin_ = ranks_[0].p;
    }
    return true;
  }

  void synchronize() {
    if (t_ >= stages_.var_freeze_step && moved()) sync();
  }

  [[nodiscard]] const Floats& params(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)].p;
  }
  /// What the step before was.
  optim::Phase phase = optim::Phase::kExact;

 private:
  struct Rank {
    Floats p, m, u;
  };

  // One entry per element's group, for the step that t_ counts.
  [[nodiscard]] std::vector<Numbers> all_numbers() const {
    std::vector<Numbers> all;
    for (const optim::AdamOptions& o : setup_.groups)
      all.push_back(numbers(o, t_, var_updates_));
    return all;
  }

  void variance_step(const Floats& sum, float scale) {
    phase = optim::Phase::kExact;
    ++t_;
    ++var_updates_;
    const std::vector<Numbers> all = all_numbers();
    Floats m = ranks_[0].m;  // equal on all ranks
    if (frozen_) frozen_->restore(m);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const Numbers& k = all[group_of_[i]];
      const float g = sum[i] * scale;
      v_[i] = k.variance(v_[i], g);
      m[i] = k.momentum(m[i], g);
    }
    Floats whole = v_;  // the next exact step's gradients will be whole
    frozen_.emplace(setup_, var_updates_, m, whole, 10);
    for (Rank& rank : ranks_) rank.m = m;
    move(all);
    if (++var_counter_ == stages_.var_update_scaler) {
      var_counter_ = 0;
      var_interval_ *= 2;
    }
  }

  // Adds what the average has lost to the momentum's residuals.
  void hand_over(double clip) {
    bits_.inherit(*few_bits_, clip, Floats(v_.size(), 1.0f), frozen_->ratios(),
                  frozen_->active);
    few_bits_->clear();
  }

  void one_bit_step(const std::vector<Floats>& grads, double clip) {
    phase = optim::Phase::kCompressed;
    ++t_;
    const std::vector<Numbers> all = all_numbers();
    for (const std::size_t i : revive(grads))
      v_[i] = d()[i] * d()[i] / all[group_of_[i]].v_scale;
    std::vector<Floats> x = frozen_->inputs(grads, clip);
    for (std::size_t r = 0; r < x.size(); ++r)
      for (std::size_t i = 0; i < x[r].size(); ++i)
        x[r][i] = all[group_of_[i]].momentum(ranks_[r].m[i], x[r][i]);
    const Floats y = bits_.mean(x, frozen_->active);
    for (Rank& rank : ranks_)
      for (std::size_t i = 0; i < y.size(); ++i)
        rank.m[i] = frozen_->active[i] == 0 ? 0 : y[i];
    move(all);
  }

  std::vector<std::size_t> revive(const std::vector<Floats>& grads) {
    const std::vector<std::size_t> revived = frozen_->revive(grads);
    for (const std::size_t i : revived)
      for (Rank& rank : ranks_) rank.m[i] = 0;
    return revived;
  }

  void move(const std::vector<Numbers>& all) {
    for (Rank& rank : ranks_)
      for (std::size_t i = 0; i < rank.p.size(); ++i) {
        const Numbers& k = all[group_of_[i]];
        const auto step = static_cast<float>(-k.learning_rate);
        rank.p[i] = rank.p[i] + step * k.update(rank.m[i], d()[i], rank.p[i]);
      }
  }

  bool frozen_step(const std::vector<Floats>& grads) {
    const bool syncs = (t_ + 1) % local_interval_ == 0;
    std::vector<std::optional<double>> clips;
    if (syncs)
      clips.assign(grads.size(), gradients_.compressed(grads));
    else
      for (const Floats& g : grads) clips.push_back(gradients_.local(g));
    if (syncs && !clips[0]) return false;
    phase = syncs ? optim::Phase::kCompressed : optim::Phase::kLocal;
    ++t_;
    const std::vector<Numbers> all = all_numbers();
    for (std::size_t g = 0; g < all.size(); ++g) {
      lrs_[g] += all[g].learning_rate * all[g].m_scale;
      decay_[g] *= 1 - all[g].learning_rate * all[g].decay;
    }
    if (syncs) (void)revive(grads);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!clips[r]) continue;
      if (!syncs) frozen_->remember(grads[r]);
      local_step(ranks_[r], frozen_->inputs({grads[r]}, *clips[r])[0], all);
    }
    if (syncs && moved()) sync();
    if (++local_counter_ == stages_.local_step_scaler) {
      local_counter_ = 0;
      local_interval_ =
          std::min(stages_.local_step_clipper, 2 * local_interval_);
    }
    return true;
  }

  void local_step(Rank& rank, const Floats& x,
                  const std::vector<Numbers>& all) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Numbers& k = all[group_of_[i]];
      const auto step = static_cast<float>(-k.learning_rate);
      rank.m[i] = frozen_->active[i] != 0 ? k.momentum(rank.m[i], x[i]) : 0;
      rank.u[i] = rank.u[i] + step * ((rank.m[i] * k.m_scale) / d()[i]);
      rank.p[i] =
          origin_[i] * static_cast<float>(decay_[group_of_[i]]) + rank.u[i];
    }
  }

  [[nodiscard]] const Floats& d() const { return frozen_->denominator; }

  [[nodiscard]] bool moved() const {
    return std::any_of(lrs_.begin(), lrs_.end(),
                       [](double sum) { return sum > 0; });
  }

  // A rank alone is at its new origin already, to the last bit.
  void sync() {
    std::vector<Floats> x;
    for (const Rank& rank : ranks_) {
      x.push_back(rank.u);
      for (std::size_t i = 0; i < d().size(); ++i) x.back()[i] *= d()[i];
    }
    const Floats b = bits_.mean(x, frozen_->active);
    for (const Parameter& p : setup_.layout.parameters())
      if (lrs_[p.group] == 0)  // does not move and keeps its momentum
        bits_.give_back(b, {p.offset, p.size}, frozen_->active);
    for (std::size_t i = 0; i < d().size(); ++i) {
      const double lrs = lrs_[group_of_[i]];
      if (lrs > 0)
        origin_[i] =
            ranks_.size() == 1
                ? ranks_[0].p[i]
                : origin_[i] * static_cast<float>(decay_[group_of_[i]]) +
                      b[i] / d()[i];
      for (Rank& rank : ranks_) {
        rank.p[i] = origin_[i];
        rank.u[i] = 0;
        if (lrs > 0) rank.m[i] = -b[i] / static_cast<float>(lrs);
      }
    }
    std::fill(lrs_.begin(), lrs_.end(), 0.0);
    std::fill(decay_.begin(), decay_.end(), 1.0);
  }

  optim::ZeroOneStages stages_;
  std::vector<Rank> ranks_;
  Floats v_, origin_;
  std::optional<Frozen> frozen_;  // as of the last variance step
  std::vector<double> lrs_, decay_;
  std::vector<std::size_t> group_of_;
  std::int64_t t_ = 0;
  std::int64_t var_updates_ = 0;
  std::int64_t var_interval_ = 1;
  std::int64_t var_counter_ = 0;
  std::int64_t local_interval_ = 1;
  std::int64_t local_counter_ = 0;
};

}  // namespace thinwire::test::naive
