// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/low_bit/options.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::optim {

/// Of every group, for one step.
using Coefficients = std::vector<kernels::AdamCoefficients>;

/// What all parts of a low-bit optimizer work on: its ranks, options, moments
/// and blocks. Parts refer to it, so it stays where it is.
struct LowBitModel {
  LowBitModel(comm::Communicator& c, const ParameterLayout& parameters,
              LowBitSettings s)
      : LowBitModel(c, parameters, std::move(s), false) {}
  LowBitModel(comm::Communicator& c, const ParameterLayout& parameters,
              LowBitSettings s, bool scale_per_unit)
      : comm(c),
        settings(std::move(s)),
        adam(parameters, settings.adam),
        pool(settings.exchange.num_threads),
        block_options{.world_size = c.size(),
                      .bucket_elements = settings.exchange.bucket_elements,
                      .scale_per_unit = scale_per_unit},
        layout(parameters, settings.groups, block_options) {}
  LowBitModel(const LowBitModel&) = delete;
  LowBitModel& operator=(const LowBitModel&) = delete;

  comm::Communicator& comm;
  const LowBitSettings settings;
  Adam adam;  // moments, groups and learning rates
  ThreadPool pool;
  const compress::BlockOptions block_options;
  const LowBitLayout layout;

  /// Sees every message content; null: nobody.
  compress::WireObserver* observer = nullptr;

  /// A group of one rank has nobody to compress for.
  [[nodiscard]] bool compresses() const { return comm.size() > 1; }
  [[nodiscard]] std::size_t size() const { return adam.layout().size(); }

  [[nodiscard]] Coefficients coefficients(std::int64_t step,
                                          double grad_scale) const {
    Coefficients all;
    for (std::size_t g = 0; g < adam.num_groups(); ++g)
      all.push_back(adam.coefficients(g, step, static_cast<float>(grad_scale)));
    return all;
  }

  // ---- blocks
  [[nodiscard]] const Range& block(std::size_t b) const {
    return layout.blocks.blocks()[b].values;
  }
  [[nodiscard]] std::size_t num_blocks() const {
    return layout.blocks.blocks().size();
  }
  void for_blocks(const std::function<void(std::size_t)>& body) {
    pool.for_each(num_blocks(), body);
  }
};

[[nodiscard]] Buffer copy_of(ConstView values);
/// Throws Error(kCorruptCheckpoint) if the state has no exp_avg_sq.
void require_variance(const StateDict& state, std::size_t size);

}  // namespace thinwire::optim
