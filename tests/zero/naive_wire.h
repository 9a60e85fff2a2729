// SPDX-License-Identifier: Apache-2.0
// ZeRO over few bits as plain loops: all ranks in one place, nothing sharded.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "support/naive_codes.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/optim/update_rule.h"
#include "thinwire/zero/wire_options.h"

namespace thinwire::test {

inline float rounded_to(DType dtype, float value) {
  if (dtype == DType::kFloat16) return to_float(to_half(value));
  if (dtype == DType::kBFloat16) return to_float(to_bfloat16(value));
  return value;
}

class NaiveWire {
 public:
  using MakeRule =
      std::function<std::unique_ptr<optim::UpdateRule>(const ParameterLayout&)>;
  using Gradients = std::vector<std::vector<float>>;  // of each rank

  NaiveWire(const ParameterLayout& layout, const MakeRule& make_rule, int ranks,
            DType dtype, const zero::WireOptions& wire,
            const std::vector<float>& start)
      : params(start),
        masters(start),
        residuals(static_cast<std::size_t>(ranks),
                  std::vector<float>(layout.size())),
        dtype_(dtype),
        wire_(wire),
        rule_(make_rule(layout)) {
    for (float& p : params) p = rounded_to(dtype, p);
    for (const Parameter& p : layout.parameters())
      for (std::size_t begin = p.offset; begin < p.offset + p.size;) {
        const std::size_t end =
            std::min((begin / 1024 + 1) * 1024, p.offset + p.size);
        cells_.push_back({begin, end - begin});
        begin = end;
      }
    batch_ranks = static_cast<double>(residuals.size());
  }

  /// A backward before the last one, at stage 2.
  void add(const Gradients& grads, double loss_scale) {
    const auto r = static_cast<float>(1 / loss_scale);
    for (std::size_t rank = 0; rank < grads.size(); ++rank)
      for (std::size_t i = 0; i < params.size(); ++i) {
        const float unscaled = grads[rank][i] * r;
        residuals[rank][i] = residuals[rank][i] + unscaled;
      }
  }

  /// Returns the norm; not finite: skipped.
  double step(const Gradients& grads, double loss_scale,
              double max_grad_norm = 0) {
    if (!reduce(grads, loss_scale)) {
      skip();
      return INFINITY;
    }
    const double norm = std::sqrt(kernels::sum_of_squares(mean));
    update(max_grad_norm > 0 && norm > max_grad_norm ? max_grad_norm / norm
                                                     : 1);
    return norm;
  }

  // ---- the same in two halves, where other parameters' gradients count too
  /// False: some gradient is not finite.
  bool reduce(const Gradients& grads, double loss_scale) {
    before_ = residuals;
    mean.assign(params.size(), 0);
    add(grads, loss_scale);  // c
    for (const auto& of_rank : residuals)
      for (const float c : of_rank)
        if (!std::isfinite(c)) return false;
    for (auto& c : residuals)
      for (const Range& cell : cells_) send_up(c.data() + cell.offset, cell);
    return true;
  }
  void skip() {
    residuals = before_;
    if (!wire_.keeps_residuals(dtype_))
      for (auto& e : residuals) std::fill(e.begin(), e.end(), 0.0f);
  }
  void update(double clip) {
    std::vector<float> grad = mean;
    ThreadPool pool(1);
    rule_->apply(++steps,
                 {.params = masters,
                  .grads = grad,
                  .grad_scale = static_cast<float>(clip)},
                 pool);
    for (const Range& cell : cells_) send_down(cell);
  }

  std::vector<float> params;  // what every rank has
  std::vector<float> masters;
  std::vector<float> mean;
  Gradients residuals;
  std::int64_t steps = 0;
  double batch_ranks = 1;  // over which the mean is; `ranks` unless set

 private:
  void send_up(float* c, const Range& cell) {
    const NaiveCodes sent(c, cell.size, wire_.bits_up);
    const auto share = static_cast<float>(1.0 / batch_ranks);
    const float step_of_mean = sent.step * share;
    for (std::size_t i = 0; i < cell.size; ++i) {
      const float own = sent.q[i] * step_of_mean;
      mean[cell.offset + i] = mean[cell.offset + i] + own;
      const float said = sent.q[i] * sent.step;
      c[i] = rounded_to(wire_.residuals(), c[i] - said);
    }
  }

  void send_down(const Range& cell) {
    std::vector<float> c(cell.size);
    for (std::size_t i = 0; i < cell.size; ++i) {
      const float goal = rounded_to(dtype_, masters[cell.offset + i]);
      if (wire_.bits_down == 0) params[cell.offset + i] = goal;
      c[i] = goal - params[cell.offset + i];
    }
    if (wire_.bits_down == 0) return;
    const NaiveCodes sent(c.data(), cell.size, wire_.bits_down);
    for (std::size_t i = 0; i < cell.size; ++i) {
      const float said = sent.q[i] * sent.step;
      float& p = params[cell.offset + i];
      p = rounded_to(dtype_, p + said);
    }
  }

  DType dtype_;
  zero::WireOptions wire_;
  std::unique_ptr<optim::UpdateRule> rule_;
  std::vector<Range> cells_;
  Gradients before_;  // residuals before this step
};

}  // namespace thinwire::test
