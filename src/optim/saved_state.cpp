// SPDX-License-Identifier: Apache-2.0
#include "optim/saved_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "core/visit_floats.h"
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

double to_double(double value) { return value; }
template <class T>
double to_double(T value) {
  return double{to_float(value)};
}

double value_at(ConstView values, std::size_t i) {
  if (values.dtype() == DType::kFloat64) return values.as<double>()[i];
  return visit_floats(values,
                      [i](const auto* data) { return to_double(data[i]); });
}

const char* describe(Sign sign) {
  switch (sign) {
    case Sign::kPositive:
      return "values above 0 and up to 1e30";
    case Sign::kNotNegative:
      return "values from 0 to 1e30";
    case Sign::kAny:
      break;
  }
  return "finite values of at most 1e30 in magnitude";
}

// Returns the largest float that does not exceed this positive value.
constexpr float rounded_down(double value) {
  const auto nearest = static_cast<float>(value);
  return nearest <= value
             ? nearest
             : std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) - 1);
}

// Compares 32-bit values as such, in groups of fixed size, so that the compiler
// can vectorize the loop.
template <class T>
std::optional<std::size_t> first_unusable(std::span<const T> values,
                                          Sign sign) {
  using Wide = std::conditional_t<std::is_same_v<T, float>, float, double>;
  constexpr auto most = static_cast<Wide>(
      std::is_same_v<T, float> ? rounded_down(kMostMagnitude) : kMostMagnitude);
  const Wide least = sign == Sign::kPositive
                         ? std::numeric_limits<Wide>::denorm_min()
                     : sign == Sign::kNotNegative ? Wide{0}
                                                  : -most;
  const auto is_unusable = [least](T value) {  // also NaN
    const auto wide = static_cast<Wide>(to_double(value));
    return !(wide >= least) | !(wide <= most);
  };
  constexpr std::size_t kAtOnce = 64;
  std::size_t usable = 0;
  for (; usable + kAtOnce <= values.size(); usable += kAtOnce) {
    unsigned any = 0;
    for (std::size_t i = usable; i < usable + kAtOnce; ++i)
      any |= static_cast<unsigned>(is_unusable(values[i]));
    if (any != 0) break;
  }
  const auto rest = values.subspan(usable);
  const auto bad = std::ranges::find_if(rest, is_unusable);
  if (bad == rest.end()) return std::nullopt;
  return usable + static_cast<std::size_t>(bad - rest.begin());
}

}  // namespace

// ---- values that a run can continue with

std::optional<std::size_t> first_unusable(ConstView values, Sign sign) {
  if (values.dtype() == DType::kFloat64)
    return first_unusable(values.as<double>(), sign);
  if (!is_model_dtype(values.dtype())) return std::nullopt;
  return visit_floats(values, [&](const auto* data) {
    return first_unusable(std::span(data, values.size()), sign);
  });
}

void require_usable(std::string_view name, ConstView values, Sign sign,
                    std::size_t first) {
  const auto bad = first_unusable(values, sign);
  if (!bad) return;
  throw UnusableValue(fmt::format("'{}' must hold {}, got {} at element {}",
                                  name, describe(sign), value_at(values, *bad),
                                  first + *bad));
}

double saved_real(const StateDict& state, std::string_view name, Sign sign) {
  const double value = state.real(name);
  require_usable(name, std::span(&value, 1), sign);
  return value;
}

void require_count(std::string_view name, std::int64_t count) {
  if (count < 0 || count > kMostCount)
    throw UnusableValue(fmt::format("'{}' must be in 0 .. {}, got {}", name,
                                    kMostCount, count));
}

std::int64_t saved_count(const StateDict& state, std::string_view name) {
  const std::int64_t count = state.integer(name);
  require_count(name, count);
  return count;
}

void StepCounts::save(StateDict& state) const {
  state.put_integer("step", steps);
  state.put_integer("skipped_steps", skipped);
}

StepCounts StepCounts::load(const StateDict& state) {
  return {.steps = saved_count(state, "step"),
          .skipped = saved_count(state, "skipped_steps")};
}

// ---- owners of states

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
                  "with what = kWeights (Python: weights_only=True)",
                  saved, own));
}

void require_rule(const StateDict& state, std::string_view rule) {
  const std::string& saved = state.text("optimizer");
  if (saved == rule) return;
  if (saved != "onebit_" + std::string(rule)) refuse_optimizer(saved, rule);
  if (const std::int64_t frozen_at = saved_count(state, "frozen_at");
      frozen_at > 0)
    corrupt(
        fmt::format("the variance was given up at step {}: load with what = "
                    "kWeights (Python: weights_only=True), or a checkpoint "
                    "before it",
                    frozen_at));
}

// ---- hosts

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
  state.owner = layout_owner(rule.layout());
  return state;
}

Optimizer::Adoption adopt_rule_state(UpdateRule& rule, StepCounts& counts,
                                     StateDict state) {
  require_rule(state, rule.name());
  return
      [&counts, saved = StepCounts::load(state), of_rule = rule.adopt(state)] {
        of_rule();
        counts = saved;
        return Notes();
      };
}

// ---- arrays

StateDict copy_to_adopt(const StateDict& state) {
  const MemoryScope scope(MemoryKind::kStates);
  return state.part("");
}

void put_missing(StateDict& state, const State& first) {
  const StateDict all = copy_of(first);
  for (const auto& [name, values] : all.arrays())
    if (!state.has_array(name)) state.put(name, values.view());
}

namespace {

Buffer take_as(StateDict& state, std::string_view name, DType dtype,
               std::size_t size) {
  const DType saved = state.array(name).dtype();
  if (saved == dtype || !is_model_dtype(saved)) {
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

}  // namespace

// Rounding may have produced infinity.
Buffer take_floats(StateDict& state, std::string_view name, DType dtype,
                   std::size_t size, Sign sign) {
  if (size == 0 && !state.has_array(name)) return Buffer(0, dtype);
  Buffer taken = take_as(state, name, dtype, size);
  require_usable(name, taken.view(), sign);
  return taken;
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
