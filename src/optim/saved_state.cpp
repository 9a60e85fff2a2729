// SPDX-License-Identifier: Apache-2.0
#include "optim/saved_state.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "optim/checks.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

[[noreturn]] void corrupt(const std::string& text) {
  throw Error(ErrorCode::kCorruptCheckpoint, text);
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || is_16_bit(dtype);
}

}  // namespace

void StepCounts::save(StateDict& state) const {
  state.put_integer("step", steps);
  state.put_integer("skipped_steps", skipped);
}

StepCounts StepCounts::load(const StateDict& state) {
  return {.steps = state.integer("step"),
          .skipped = state.integer("skipped_steps")};
}

// ---- whose state it is

StateDict layout_owner(const ParameterLayout& layout) {
  StateDict owner;
  owner.put_text("layout", layout.describe());
  return owner;
}

void require_layout(const StateDict& state, const ParameterLayout& layout) {
  if (state.text("layout") != layout.describe())
    corrupt(fmt::format(
        "the state is of another parameter layout: it begins with "
        "'{}', this one with '{}'",
        state.text("layout").substr(0, 60), layout.describe().substr(0, 60)));
}

void require_text(const StateDict& state, const char* key,
                  std::string_view own) {
  if (state.text(key) != own)
    corrupt(fmt::format("the state's {} is {}, this optimizer's {}", key,
                        state.text(key), own));
}

void refuse_optimizer(std::string_view saved, std::string_view own) {
  corrupt(
      fmt::format("the state's optimizer is {}, this optimizer's {}: load "
                  "with what = kWeights",
                  saved, own));
}

void require_rule(const StateDict& state, std::string_view rule) {
  const std::string& saved = state.text("optimizer");
  if (saved == rule) return;
  if (saved != "onebit_" + std::string(rule)) refuse_optimizer(saved, rule);
  if (const std::int64_t frozen_at = state.integer("frozen_at"); frozen_at > 0)
    corrupt(
        fmt::format("the variance was given up at step {}: load with what = "
                    "kWeights, or a checkpoint before it",
                    frozen_at));
}

// ---- by host

void add_hosts(State& state, const comm::Hosts& hosts) {
  if (hosts.is_flat()) return;
  state.common.put_integer(kRanksPerHost, hosts.ranks_per_host);
  state.common.put_integer(kHostLayout,
                           static_cast<std::int64_t>(checksum(hosts.ranks)));
  state.own.put_integer(kHost, hosts.index);
}

std::int64_t saved_ranks_per_host(const StateDict& state) {
  if (!state.has_scalar(kRanksPerHost)) return 1;
  const std::int64_t saved = state.integer(kRanksPerHost);
  if (saved < 1)
    corrupt(fmt::format("the state's {} must be >= 1, got {}", kRanksPerHost,
                        saved));
  return saved;
}

// ---- an optimizer that has nothing but a rule and counts

State rule_state(const UpdateRule& rule, const StepCounts& counts) {
  State state;
  rule.add_to(state, Sharing::kSame, {{0, rule.layout().size()}});
  state.common.put_text("optimizer", std::string(rule.name()));
  counts.save(state.common);
  return state;
}

Adoption adopt_rule_state(UpdateRule& rule, StepCounts& counts,
                          StateDict state) {
  require_rule(state, rule.name());
  return
      [&counts, saved = StepCounts::load(state), of_rule = rule.adopt(state)] {
        of_rule();
        counts = saved;
      };
}

// ---- arrays

StateDict copy_to_adopt(const StateDict& state) {
  const MemoryScope scope(MemoryKind::kStates);
  return state.part("");
}

Buffer take_floats(StateDict& state, std::string_view name, DType dtype,
                   std::size_t size) {
  if (size == 0 && !state.has_array(name)) return Buffer(0, dtype);
  const DType saved = state.array(name).dtype();
  if (saved == dtype || !is_float(saved)) {
    static_cast<void>(state.array(name, dtype, size));
    return state.take(name);
  }
  static_cast<void>(state.array(name, saved, size));
  const bool rounds = is_16_bit(dtype);
  if (rounds && !(state.has_scalar("allow_rounding") &&
                  state.integer("allow_rounding") == 1))
    corrupt(
        fmt::format("state array '{}' is {} and would be rounded to {}: "
                    "allow_rounding allows it",
                    name, to_string(saved), to_string(dtype)));
  Buffer kept(size, dtype);
  kernels::convert(state.array(name), kept.view());
  state.erase(name);
  return kept;
}

void add_to_elements(State& state, std::string name, Sharing sharing,
                     std::span<const std::size_t> elements, Buffer&& values) {
  std::vector<Range> ranges;
  for (const std::size_t element : elements) ranges.push_back({element, 1});
  StateArray& added = state.add_ranges(std::move(name), sharing,
                                       std::move(ranges), values.view());
  added.read = StateArray::from(std::move(values));
}

std::vector<Range> saved_ranges(const StateDict& state, std::string_view array,
                                std::size_t num_elements) {
  const std::string key = ranges_key(array);
  const std::size_t size = state.array(key).size();
  const auto saved = state.array(key, DType::kInt64, size).as<std::int64_t>();
  const auto end = static_cast<std::int64_t>(num_elements);
  std::vector<Range> ranges;
  std::int64_t least = 0;
  for (std::size_t i = 0; i < size; i += 2) {
    const std::int64_t offset = saved[i];
    const std::int64_t count = i + 1 < size ? saved[i + 1] : -1;
    if (offset < least || count < 0 || offset > end || count > end - offset)
      corrupt(
          fmt::format("state array '{}' must hold ascending ranges within {}, "
                      "got {} of size {}",
                      key, num_elements, offset, count));
    ranges.push_back(
        {static_cast<std::size_t>(offset), static_cast<std::size_t>(count)});
    least = offset + count;
  }
  return ranges;
}

std::vector<std::size_t> saved_elements(const StateDict& state,
                                        std::string_view array,
                                        std::size_t num_elements) {
  std::vector<std::size_t> indices;
  for (const Range& range : saved_ranges(state, array, num_elements)) {
    if (range.size != 1)
      corrupt(
          fmt::format("state array '{}' must hold single elements, got {} "
                      "of size {}",
                      ranges_key(array), range.offset, range.size));
    indices.push_back(range.offset);
  }
  return indices;
}

}  // namespace thinwire::optim
