// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "optim/experts/joined_state.h"
#include "optim/state_pieces.h"
#include "outer/impl.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/norm.h"

// Saves the inner optimizer's state and, under names with a prefix, the states
// of the outer optimizer, the warm-up and the schedule.
namespace thinwire::outer {

using optim::Axis;
using optim::Sharing;

namespace {

constexpr std::string_view kPrefix = "outer.";
constexpr const char* kIsLocal = "is_local";
constexpr const char* kOrigin = "origin";
constexpr const char* kLocalParams = "local_params";

std::string prefixed(std::string_view name) {
  return std::string(kPrefix) + std::string(name);
}

// Moves the entries with the prefix into a separate state.
StateDict take_own(StateDict& state) {
  std::vector<std::string> names;
  for (const auto& [name, values] : state.arrays())
    if (name.starts_with(kPrefix)) names.push_back(name);
  StateDict own;
  for (const std::string& name : names)
    own.put(name.substr(kPrefix.size()), state.take(name));
  for (const auto& [name, value] : state.scalars())
    if (name.starts_with(kPrefix))
      own.put_scalar(name.substr(kPrefix.size()), value);
  return own;
}

// Reads bytes as floats, because bytes cannot be averaged.
void widen(optim::StateArray& array) {
  array.read = [read = std::move(array.read)](Range range, View to) {
    Buffer bytes(range.size, DType::kUInt8);
    read(range, bytes.view());
    std::ranges::copy(bytes.as<std::uint8_t>(), to.as<float>().begin());
  };
  array.dtype = DType::kFloat32;
}

// Marks arrays that differ between ranks after local steps: moments, lists of
// elements, and arrays that only the inner optimizer can read.
void make_own(optim::State& state) {
  for (optim::StateArray& array : state.arrays) {
    if (array.sharing != Sharing::kSame) continue;
    const bool is_bytes = array.dtype == DType::kUInt8;
    if (array.axis == Axis::kRange) array.sharing = Sharing::kOwn;
    if (array.axis == Axis::kElement || (array.axis == Axis::kFree && is_bytes))
      array.sharing = Sharing::kMean;
    if (array.axis == Axis::kElement && is_bytes) widen(array);
  }
}

StateDict zeros_of(const optim::State& state) {
  StateDict zeros = optim::copy_of(state);
  for (const optim::StateArray& array : state.arrays)
    zeros.put(array.name, Buffer(array.size, array.dtype));
  return zeros;
}

double sum_of_squares(const optim::StateArray& array) {
  double sum = 0;
  optim::StatePieces pieces(array);
  static_cast<void>(pieces.all_of({0, array.size}, [&](ConstView piece) {
    sum += kernels::sum_of_squares(piece);
    return true;
  }));
  return sum;
}

}  // namespace

std::int64_t Schedule::list(optim::StateParts& parts) {
  const std::int64_t steps_behind = parts.count({"steps_behind"}, behind);
  const std::int64_t interval = parts.count({"interval"}, length);
  parts.count({"interval_counter"}, counter);
  parts.count({"syncs"}, syncs);
  if (interval < 1)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("'outer.interval' must be >= 1, got {}", interval));
  return steps_behind;
}

bool OuterLoop::Impl::list(optim::StateParts& parts) {
  const bool local = parts.integer({kIsLocal}, is_local);
  parts.add([this](optim::State& state) { norm.save(state.common); },
            [](const StateDict& state) {
              optim::CalibratedNorm saved;
              saved.load(state);
              return saved;
            },
            [this](const optim::CalibratedNorm& saved) { norm = saved; });
  const bool is_behind = schedule.list(parts) > 0;
  parts.integer({"verification_is_due"}, verification_is_due);
  parts.integer({.name = "left_out_a_step", .is_own = true, .missing = 0},
                left_out_a_step);
  if (!local || !is_behind) {
    parts.set(restored_params, Buffer());
    return local;
  }
  parts.add(
      [this](optim::State& state) {
        state.add_elements(kLocalParams, Sharing::kMean, {{0, layout.size()}},
                           restored_params.empty() ? ConstView(params)
                                                   : restored_params.view());
      },
      [this](StateDict& state) {
        return optim::take_floats(state, kLocalParams, DType::kFloat32,
                                  layout.size());
      },
      [this](Buffer&& saved) { restored_params = std::move(saved); });
  return local;
}

optim::State OuterLoop::Impl::state() {
  optim::State all = inner->state();
  all.has_local_steps = true;
  if (is_local) make_own(all);
  all.common.put_integer("skipped_steps", counts.skipped);

  optim::State own;
  if (is_local)
    own = owners->state();
  else
    warm_up.add_to(own);
  // Replicas are not saved, because the anchor replaces them.
  std::erase_if(own.arrays, [](const optim::StateArray& array) {
    return array.name == "replicas";
  });
  optim::StateParts parts(own);
  list(parts);
  own.owner.put_integer("world_size", comm.size());
  own.owner.put_integer("rank", comm.rank());
  optim::join_under(all, std::move(own), std::string(kPrefix));
  if (is_local)
    all.add_elements(kOrigin, Sharing::kSame, {{0, layout.size()}},
                     anchor.view())
        .is_parameters = true;
  optim::add_hosts(all, comm.hosts());
  const optim::State of_owners = owners->state();
  all.shard = of_owners.shard;
  all.encoded = of_owners.encoded;
  return all;
}

// If the number of ranks changes, the mean replaces each rank's own change of
// parameters. A single rank has no replicas, so its anchor is the exact value,
// and its parameters move by the difference from the saved origin.
optim::Optimizer::Adoption OuterLoop::Impl::adopt(StateDict state) {
  StateDict own = take_own(state);
  optim::StateParts parts(own);
  parts.set(counts, optim::StepCounts::load(state));
  const std::int64_t saved_world =
      state.has_scalar(optim::kSavedWorld)
          ? optim::saved_count(state, optim::kSavedWorld)
          : comm.size();
  bool was_local = false;
  if (own.has_scalar(kIsLocal)) {
    was_local = list(parts);
  } else {
    optim::CalibratedNorm of_inner;
    if (state.has_scalar("clip_ratio")) of_inner.load(state);
    parts.set(norm, std::move(of_inner));
    parts.set(schedule, Schedule());
    parts.set(restored_params, Buffer());
    for (bool* const flag : {&is_local, &verification_is_due, &left_out_a_step})
      parts.set(*flag, false);
  }
  parts.then([=, this] { norm.rescale(saved_world, comm.size()); });
  optim::Notes notes;
  for (const char* name : {"worker_error", "server_error"}) {
    if (state.has_array(name) && notes.empty())
      notes.emplace_back(
          "the residuals of compressed momenta are dropped: an outer loop "
          "exchanges changes of parameters");
    state.erase(name);
  }
  const auto origin = std::make_shared<Buffer>();
  if (was_local)
    *origin =
        optim::take_floats(state, kOrigin, DType::kFloat32, layout.size());
  // After local steps a state does not record which elements each rank owns, so
  // residuals of a warm-up are dropped.
  if (is_local && groups && !was_local &&
      own.has_array("warmup_worker_error")) {
    own.erase("warmup_worker_error");
    own.erase("warmup_server_error");
    notes.emplace_back(
        "the residuals of the low-bit warm-up are dropped: this optimizer has "
        "taken local steps");
  }
  parts.then(warm_up.adopt(own));
  const auto of_owners =
      owners->adopt(was_local ? std::move(own) : zeros_of(owners->state()));
  return [this, notes, origin, of_owners, set = parts.adoption(),
          of_inner = inner->adopt(std::move(state))] {
    optim::Notes all = notes;
    for (std::string& note : of_inner()) all.push_back(std::move(note));
    set();
    params = {};
    unreported_rank = -1;
    if (is_local) warm_up.release();
    if (is_local) kernels::convert(origin->view(), anchor.view());
    static_cast<void>(of_owners());
    if (!is_local ||
        std::memcmp(anchor.data(), origin->data(), origin->bytes()) == 0)
      return all;
    if (restored_params.empty()) {
      restored_params = Buffer::of<float>(layout.size());
      kernels::convert(origin->view(), restored_params.view());
    }
    const auto p = restored_params.as<float>();
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] += anchor.as<float>()[i] - origin->as<float>()[i];
    return all;
  };
}

Buffer OuterLoop::Impl::own_momentum() const {
  const optim::State of_owners = owners->state();
  const optim::StateArray* const momentum = of_owners.find("momentum");
  Buffer copy = Buffer::of<float>(momentum->size);
  momentum->read({0, momentum->size}, copy.view());
  return copy;
}

double OuterLoop::Impl::residual_ratio() const {
  if (changed == 0 || !is_local) return 0;
  const optim::State of_owners = owners->state();
  const optim::StateArray* const residual = of_owners.find(optim::kWorkerError);
  return residual == nullptr ? 0
                             : std::sqrt(sum_of_squares(*residual)) / changed;
}

optim::State OuterLoop::state() const { return impl_->state(); }

optim::Optimizer::Adoption OuterLoop::adopt(StateDict state) {
  return impl_->adopt(std::move(state));
}

double OuterLoop::residual_ratio() const { return impl_->residual_ratio(); }

void OuterLoop::require_owner(const StateDict& state) const {
  impl_->inner->require_owner(state);
  const std::string rank = prefixed("rank");
  if (!state.has_scalar(rank)) return;
  if (state.integer(rank) != impl_->comm.rank() ||
      state.integer(prefixed("world_size")) != impl_->comm.size())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("a state of rank {} of {} does not fit rank {} of {}",
                    state.integer(rank), state.integer(prefixed("world_size")),
                    impl_->comm.rank(), impl_->comm.size()));
  const std::int64_t saved = optim::saved_ranks_per_host(state);
  if (saved != impl_->comm.hosts().ranks_per_host)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("a state of {} ranks per host does not fit {}",
                            saved, impl_->comm.hosts().ranks_per_host));
}

}  // namespace thinwire::outer
