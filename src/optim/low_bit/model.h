// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/places.h"
#include "optim/low_bit/gradients/host_gradients.h"
#include "optim/low_bit/masks.h"
#include "optim/low_bit/options.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::optim {

/// Of every group, for one step.
using Coefficients = std::vector<kernels::AdamCoefficients>;

/// Returns the settings with the number of elements in a bucket, if that was
/// left to the rule.
[[nodiscard]] inline LowBitSettings with_buckets(
    LowBitSettings settings, const comm::Communicator& comm,
    const ParameterLayout& layout) {
  std::size_t& chosen = settings.exchange.bucket_elements;
  chosen = exchange::bucket_elements(chosen, layout.size(), comm.hosts(), 1);
  return settings;
}

/// What all parts of a low-bit optimizer work on: its ranks, options, moments
/// and blocks. Parts refer to it, so it stays where it is.
struct LowBitModel {
  LowBitModel(comm::Communicator& c, const ParameterLayout& parameters,
              LowBitSettings s)
      : comm(c),
        groups(groups_of(c)),
        places(c, groups.get()),
        settings(with_buckets(std::move(s), c, parameters)),
        adam(parameters, settings.adam),
        pool(settings.exchange.num_threads),
        block_options{.world_size = c.size(),
                      .bucket_elements = settings.exchange.bucket_elements},
        layout(parameters, settings.groups, block_options),
        masks(parameters, settings.groups) {
    if (groups)
      host = std::make_unique<HostGradients>(*groups, pool, layout, places);
  }
  /// Of blocks that are given, without moments.
  LowBitModel(comm::Communicator& c, const ParameterLayout& parameters,
              LowBitSettings s, exchange::BlockLayout given)
      : comm(c),
        groups(groups_of(c)),
        places(c, groups.get()),
        settings(std::move(s)),
        adam(parameters, settings.adam, Adam::Moments::kNone),
        pool(settings.exchange.num_threads),
        block_options{.world_size = c.size()},
        layout(parameters, std::move(given)),
        masks(parameters, settings.groups),
        has_given_blocks(true) {
    if (groups)
      host = std::make_unique<HostGradients>(*groups, pool, layout, places);
  }
  LowBitModel(const LowBitModel&) = delete;
  LowBitModel& operator=(const LowBitModel&) = delete;

  comm::Communicator& comm;
  /// By host, where comm.hosts() are not flat; null else.
  const std::unique_ptr<const comm::HostGroups> groups;
  const exchange::Places places;
  const LowBitSettings settings;
  Adam adam;  // moments, groups and learning rates
  ThreadPool pool;
  const exchange::BlockOptions block_options;
  const LowBitLayout layout;
  Masks masks;
  /// By host: what ranks of one host average first. Null: flat.
  std::unique_ptr<HostGradients> host;
  const bool has_given_blocks = false;  // not cut by block_options

  /// Sees every message content; null: nobody.
  exchange::WireObserver* observer = nullptr;

  /// A group of one rank has nobody to compress for.
  [[nodiscard]] bool compresses() const { return comm.size() > 1; }
  /// What is averaged in few bits is of so many: ranks, or by host hosts.
  [[nodiscard]] int workers() const { return static_cast<int>(places.workers); }
  [[nodiscard]] std::size_t size() const { return adam.layout().size(); }
  /// Returns Adam's groups, as MaskedGroups takes them.
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

  /// Elements that travel together.
  [[nodiscard]] std::size_t bucket() const {
    return settings.exchange.bucket_elements;
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
  /// The same bucket by bucket, each of which is then passed to `tell`. If that
  /// is empty, all at once.
  void for_blocks(const std::function<void(std::size_t)>& body,
                  const FinalRange& tell);
  /// Passes the elements of some blocks to `tell`, neighbours together.
  void tell_blocks(Range blocks, const FinalRange& tell) const;
  /// That of a compressed element.
  [[nodiscard]] std::size_t block_of(std::size_t element) const {
    const auto blocks = layout.blocks.blocks();
    return static_cast<std::size_t>(
        std::ranges::partition_point(blocks,
                                     [&](const exchange::Block& b) {
                                       return b.values.end() <= element;
                                     }) -
        blocks.begin());
  }
  /// By host, this step has averaged only the gradients that a rank encodes.
  [[nodiscard]] bool has_pieces_only() const {
    return host && host->has_pieces_only();
  }
  /// Whether this rank has a block's gradients in this step.
  [[nodiscard]] bool has_gradient(std::size_t b) const {
    return !has_pieces_only() || places.has(layout.blocks.blocks()[b]);
  }
  /// They, of all in `grads`.
  [[nodiscard]] View gradient(std::size_t b, View grads) const {
    return host ? host->of(b, grads)
                : grads.subview(block(b).offset, block(b).size);
  }

 private:
  [[nodiscard]] static std::unique_ptr<const comm::HostGroups> groups_of(
      comm::Communicator& comm);
};

[[nodiscard]] Buffer copy_of(ConstView values);
/// Rank 0 logs that a state is of other hosts than the model's ranks.
void note_other_hosts(const StateDict& state, const LowBitModel& model);
/// Throws Error(kCorruptCheckpoint) if the state has no exp_avg_sq.
void require_variance(const StateDict& state, std::size_t size);

}  // namespace thinwire::optim
