// SPDX-License-Identifier: Apache-2.0
// An Engine with ZeRO, and its memory.
#pragma once

#include <set>
#include <utility>

#include "engine/by_hand.h"

// `test::` means these and what all modules share.
namespace thinwire::test {}
namespace thinwire::engine::test {
using namespace thinwire::test;  // NOLINT(google-build-using-namespace)

/// Buckets that are smaller than some parameters.
inline config::Config zero_config(int stage, DType dtype = DType::kFloat32,
                                  std::int64_t accumulation_steps = 1,
                                  bool managed = true) {
  config::Config config{.optimizer = optimizer_case("adam"),
                        .gradient_accumulation_steps = accumulation_steps,
                        .managed_gradient_accumulation = managed};
  config.precision.dtype = dtype;
  config.precision.loss_scale = {
      .initial_scale = 1024, .window = 2, .hysteresis = 1};
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 5000;
  return config;
}

/// As Driven; gradients have an array where the Engine keeps them. Without ZeRO
/// too.
class Sharded {
 public:
  Sharded(comm::Communicator& c, const config::Config& config,
          bool from_floats = true, ParameterLayout of = model_layout())
      : layout(std::move(of)),
        comm(c),
        keeps(keeps_gradients(config, c.size())),
        params(layout.size(), config.precision.dtype),
        grads(keeps ? layout.size() : 0, config.precision.dtype),
        start(initial_params(layout.size(), c.rank())),
        engine([&] {
          kernels::convert(start, params.view());
          return Engine(comm, layout, config, params.view(), grads.view(),
                        from_floats ? ConstView(start) : ConstView());
        }()) {}

  [[nodiscard]] Buffer gradients(const Batch& batch) const {
    return gradient(layout, comm.rank(), batch, engine.loss_factor(),
                    params.dtype());
  }
  /// Parameter k's gradient is final.
  void hand_over(const Buffer& own, std::size_t k) {
    const Parameter& p = layout.parameters()[k];
    const ConstView values = own.view().subview(p.offset, p.size);
    if (!keeps) return engine.gradient_ready(k, values);
    if (p.size > 0)
      kernels::accumulate(grads.view().subview(p.offset, p.size), values);
    engine.gradient_ready(k);
  }
  /// Without `left_out`; the odd ranks in another order.
  void backward(const Batch& batch,
                const std::set<std::size_t>& left_out = {}) {
    engine.begin_backward();
    const Buffer own = gradients(batch);
    const std::size_t count = layout.parameters().size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t k = comm.rank() % 2 == 0 ? count - 1 - i : i;
      if (left_out.count(k) == 0) hand_over(own, k);
    }
    engine.end_backward();
  }
  /// Those that have no gradient on this rank.
  [[nodiscard]] std::set<std::size_t> unused() const {
    std::set<std::size_t> all;
    for (std::size_t k = 0; k < layout.parameters().size(); ++k)
      if (is_unused(k, comm.rank())) all.insert(k);
    return all;
  }

  const ParameterLayout layout;
  comm::Communicator& comm;
  const bool keeps;
  Buffer params;
  Buffer grads;
  std::vector<float> start;
  Engine engine;
};

}  // namespace thinwire::engine::test
