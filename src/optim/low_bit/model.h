// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/pipeline/places.h"
#include "optim/low_bit/gradients/host_gradients.h"
#include "optim/low_bit/layout.h"
#include "optim/low_bit/options.h"
#include "optim/state_parts.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::optim {

/// Coefficients of all groups for one step.
using Coefficients = std::vector<kernels::AdamCoefficients>;

/// Returns the settings with the number of elements per bucket, if the caller
/// has not chosen it.
[[nodiscard]] inline LowBitSettings with_buckets(
    LowBitSettings settings, const comm::Communicator& comm,
    const ParameterLayout& layout) {
  std::size_t& chosen = settings.exchange.bucket_elements;
  chosen = exchange::bucket_elements(chosen, layout.size(), comm.hosts(), 1);
  return settings;
}

/// Ranks, options, moments and blocks of a low-bit optimizer. All its parts
/// refer to this object, which therefore must not be moved.
struct LowBitModel {
  /// If blocks are given, the model has no moments. Otherwise it cuts blocks.
  LowBitModel(comm::Communicator& c, const ParameterLayout& parameters,
              LowBitSettings s, std::optional<exchange::BlockLayout> given = {})
      : comm(c),
        groups(exchange::groups_unless_flat(c)),
        places(c, groups.get()),
        has_given_blocks(given.has_value()),
        settings(given ? std::move(s)
                       : with_buckets(std::move(s), c, parameters)),
        adam(parameters, settings.adam,
             given ? Adam::Moments::kNone : Adam::Moments::kOwn),
        pool(settings.exchange.num_threads),
        layout(parameters, settings.groups, block_options(), std::move(given)),
        masks(parameters, settings.groups) {
    if (groups)
      host = std::make_unique<HostGradients>(*groups, pool, layout, places);
  }
  LowBitModel(const LowBitModel&) = delete;
  LowBitModel& operator=(const LowBitModel&) = delete;

  comm::Communicator& comm;
  /// Groups of the hosts, or null if comm.hosts() are flat.
  const std::unique_ptr<const comm::HostGroups> groups;
  const exchange::Places places;
  const bool has_given_blocks;  // instead of blocks cut by block_options()
  const LowBitSettings settings;
  Adam adam;  // moments, groups and learning rates
  ThreadPool pool;
  const LowBitLayout layout;
  Masks masks;
  /// Averages inside hosts; null if flat.
  std::unique_ptr<HostGradients> host;

  /// Receives the content of every message; may be null.
  exchange::WireObserver* observer = nullptr;

  /// Returns whether there are several ranks, because a single one does not
  /// compress.
  [[nodiscard]] bool compresses() const { return comm.size() > 1; }
  /// Returns the number of workers of a low-bit average, which are ranks, or
  /// hosts in a hierarchical exchange.
  [[nodiscard]] int workers() const { return static_cast<int>(places.workers); }
  [[nodiscard]] std::size_t size() const { return adam.layout().size(); }
  /// Returns Adam's groups in the form that MaskedGroups expects.
  [[nodiscard]] JoinedGroups::Parts parts() {
    return [this] { return std::vector<ParameterGroups*>{&adam}; };
  }

  [[nodiscard]] Coefficients coefficients(std::int64_t step,
                                          double grad_scale) const {
    Coefficients all;
    for (std::size_t g = 0; g < adam.num_groups(); ++g)
      all.push_back(adam.coefficients(g, step, static_cast<float>(grad_scale)));
    return all;
  }

  /// Returns the number of elements that are sent together.
  [[nodiscard]] std::size_t bucket() const {
    return settings.exchange.bucket_elements;
  }
  [[nodiscard]] exchange::BlockOptions block_options() const {
    exchange::BlockOptions options{.world_size = comm.size()};
    if (!has_given_blocks) options.bucket_elements = bucket();
    return options;
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
  /// Calls `body` for all blocks, bucket by bucket, and passes each bucket to
  /// `tell`. If `tell` is empty, processes all blocks at once.
  void for_blocks(const std::function<void(std::size_t)>& body,
                  const FinalRange& tell);
  /// Passes the elements of some blocks to `tell`, with adjacent ranges joined.
  void tell_blocks(Range blocks, const FinalRange& tell) const;
  /// Returns a function that passes delivered blocks to `tell`, which must
  /// outlive it. The function is empty if `tell` is.
  [[nodiscard]] std::function<void(Range)> teller(const FinalRange& tell) const;
  /// Returns the block of a compressed element.
  [[nodiscard]] std::size_t block_of(std::size_t element) const {
    const auto blocks = layout.blocks.blocks();
    return static_cast<std::size_t>(
        std::ranges::partition_point(blocks,
                                     [&](const exchange::Block& b) {
                                       return b.values.end() <= element;
                                     }) -
        blocks.begin());
  }
  /// Returns whether this step, in a hierarchical exchange, has averaged only
  /// the gradients that this rank encodes.
  [[nodiscard]] bool has_pieces_only() const {
    return host && host->has_pieces_only();
  }
  /// Returns whether this rank has a block's gradients in this step.
  [[nodiscard]] bool has_gradient(std::size_t b) const {
    return !has_pieces_only() || places.has(layout.blocks.blocks()[b]);
  }
  /// Returns the gradients of one block. `grads` holds those of all elements.
  [[nodiscard]] View gradient(std::size_t b, View grads) const {
    return host ? host->of(b, grads)
                : grads.subview(block(b).offset, block(b).size);
  }
};

[[nodiscard]] Buffer copy_of(ConstView values);
/// Lists the learning rates of Adam's groups.
void list_learning_rates(StateParts& parts, Adam& adam);
/// Logs on rank 0 that a state comes from other hosts than the model's.
void note_other_hosts(const StateDict& state, const LowBitModel& model);

}  // namespace thinwire::optim
