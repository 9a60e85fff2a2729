// SPDX-License-Identifier: Apache-2.0
// Which elements of the momentum take part, and its saved residuals.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "optim/low_bit/momentum.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

// Which blocks this rank serves depends on the buckets, how many elements they
// have may not.
std::int64_t residual_layout(const compress::BlockLayout& layout) {
  std::vector<std::int32_t> servers;
  for (const compress::Block& block : layout.blocks())
    servers.push_back(block.server);
  return static_cast<std::int64_t>(checksum(servers));
}

}  // namespace

void CompressedMomentum::set_participation(std::vector<std::uint8_t> elements) {
  participation_ = std::move(elements);
  late_ = LateElements(model_.layout.blocks, participation_);
  num_left_out_ =
      participation_.size() -
      static_cast<std::size_t>(
          std::count(participation_.begin(), participation_.end(), kTakesPart));
  active_ =
      participation_.empty()
          ? compress::ActiveMask()
          : compress::ActiveMask(model_.layout.blocks,
                                 [&](std::size_t i) { return takes_part(i); });
  if (exchange_) exchange_->set_active(active_);
}

// Momentum becomes values under the old mask: kept as signs it would decode to
// +-scale where it is 0.
std::vector<std::size_t> CompressedMomentum::admit_late(StepMeter& step) {
  keep_as_values();
  const auto m = model_.adam.exp_avg().as<float>();
  std::vector<std::size_t> admitted;
  for (const auto& [block, words] : late_.revive(model_.comm, step)) {
    const std::size_t begin = model_.block(block).offset;
    for (std::size_t w = 0; w < words.size(); ++w)
      for (std::uint32_t rest = words[w]; rest != 0; rest &= rest - 1) {
        const std::size_t i =
            begin + w * 32 + static_cast<std::size_t>(std::countr_zero(rest));
        participation_[i] = kTakesPart;
        m[i] = 0;
        admitted.push_back(i);
      }
    active_.add(model_.layout.blocks, block, words);
  }
  num_left_out_ -= admitted.size();
  if (exchange_) exchange_->set_active(active_);
  return admitted;
}

void CompressedMomentum::save_participation(StateDict& state) const {
  if (!participation_.empty()) state.put("participation", participation_);
  late_.save(state);
}

LateElements CompressedMomentum::saved_late(
    const StateDict& state, const std::vector<std::uint8_t>& elements) const {
  LateElements late(model_.layout.blocks, elements);
  late.load_memory(state, model_.size());
  return late;
}

void CompressedMomentum::clear_residuals() {
  if (exchange_) exchange_->clear_errors();
}

void CompressedMomentum::save_residuals(StateDict& state) const {
  if (!exchange_) return;
  state.put_integer("world_size", model_.comm.size());
  state.put_integer("rank", model_.comm.rank());
  state.put_integer("residual_layout", residual_layout(model_.layout.blocks));
  state.put("worker_error", exchange_->worker_error());
  state.put("server_error", exchange_->server_error());
}

void CompressedMomentum::require_residuals(const StateDict& state) const {
  if (!state.has_array("worker_error")) return;
  const comm::Communicator& comm = model_.comm;
  if (state.integer("world_size") != comm.size() ||
      state.integer("rank") != comm.rank())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("residuals of rank {} of {} do not fit rank {} of {}",
                    state.integer("rank"), state.integer("world_size"),
                    comm.rank(), comm.size()));
  if (state.integer("residual_layout") != residual_layout(model_.layout.blocks))
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state's residual_layout is of another bucket "
                            "size than this optimizer's bucket_elements {}",
                            model_.settings.exchange.bucket_elements));
}

// Where they do not fit, there is an exchange only if there was one before.
void CompressedMomentum::load_residuals(const StateDict& state) {
  if (!state.has_array("worker_error")) {
    clear_residuals();
    return;
  }
  const bool is_new = exchange_ == nullptr;
  try {
    exchange().load_errors(state.array("worker_error"),
                           state.array("server_error"));
  } catch (const Error&) {
    if (is_new) exchange_.reset();
    throw;
  }
}

}  // namespace thinwire::optim
