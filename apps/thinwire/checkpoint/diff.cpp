// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <variant>

#include "apps/thinwire/checkpoint/commands.h"
#include "apps/thinwire/checkpoint/difference.h"
#include "apps/thinwire/checkpoint/opened.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

using checkpoint::SavedArray;
using checkpoint::SavedPiece;
using optim::Axis;
using optim::Sharing;

constexpr const char* kOnlyA = "only the first has it";
constexpr const char* kOnlyB = "only the second has it";

Values in_memory(ConstView values) {
  return {values.dtype(), values.size(), [values](Range range, View to) {
            const ConstView part = values.subview(range.offset, range.size);
            std::copy_n(static_cast<const std::byte*>(part.data()),
                        part.bytes(), static_cast<std::byte*>(to.data()));
          }};
}

class Comparison {
 public:
  Comparison(Opened& a, Opened& b, Differences& to) : a_(a), b_(b), to_(to) {}

  void run() {
    compare_facts();
    for (const auto& parameter : a_.manifest().parameters)
      compare_parameter(parameter);
    for (const auto& parameter : b_.manifest().parameters)
      if (!a_.parameter(parameter.name)) to_.note(parameter.name, kOnlyB);
    for (const auto& other : a_.manifest().others)
      if (b_.has_weight(other.name))
        to_.compare(other.name, a_.weight(other.name), b_.weight(other.name));
      else
        to_.note(other.name, kOnlyA);
    for (const auto& other : b_.manifest().others)
      if (!a_.has_weight(other.name)) to_.note(other.name, kOnlyB);
    for (const SavedArray& array : a_.manifest().arrays) compare_array(array);
    for (const SavedArray& array : b_.manifest().arrays)
      if (a_.arrays().find(array.name) == nullptr) to_.note(array.name, kOnlyB);
  }

 private:
  bool same_world() const { return a_.manifest().world == b_.manifest().world; }

  void compare_facts() {
    const auto& a = a_.manifest();
    const auto& b = b_.manifest();
    to_.compare("step", std::to_string(a.step), std::to_string(b.step));
    to_.compare("optimizer", a.optimizer, b.optimizer);
    to_.compare("semantics", a.semantics, b.semantics);
    to_.compare("phase", a.phase, b.phase);
    to_.compare("precision", a.precision, b.precision);
    compare_scalars("scalar ", a.scalars, b.scalars);
    for (const auto& alias : a.aliases)
      if (!has_alias(b, alias)) to_.note(alias.first, kOnlyA);
    for (const auto& alias : b.aliases)
      if (!has_alias(a, alias)) to_.note(alias.first, kOnlyB);
    compare_states("extra ", a_.extra().common(), b_.extra().common());
    if (!same_world())
      return to_.leave_out("scalars and extra arrays of ranks",
                           "saved by other ranks");
    const StateDict none;
    const auto compare_lists = [&](const std::string& what, const auto& x,
                                   const auto& y) {
      for (std::size_t r = 0; r < std::max(x.size(), y.size()); ++r)
        compare_scalars(fmt::format("{}of rank {} ", what, r),
                        r < x.size() ? x[r] : none, r < y.size() ? y[r] : none);
    };
    compare_lists("scalar ", a.scalars_of_ranks, b.scalars_of_ranks);
    for (int r = 0; r < a.world; ++r)
      compare_states(fmt::format("extra of rank {} ", r), a_.extra().of_rank(r),
                     b_.extra().of_rank(r));
  }

  static bool has_alias(const checkpoint::Manifest& manifest,
                        const std::pair<std::string, std::string>& alias) {
    return std::ranges::find(manifest.aliases, alias) != manifest.aliases.end();
  }

  void compare_states(const std::string& what, const StateDict& a,
                      const StateDict& b) {
    compare_scalars(what, a, b);
    for (const auto& [name, values] : a.arrays())
      if (b.has_array(name))
        to_.compare(what + name, in_memory(values.view()),
                    in_memory(b.array(name)));
      else
        to_.note(what + name, kOnlyA);
    for (const auto& [name, values] : b.arrays())
      if (!a.has_array(name)) to_.note(what + name, kOnlyB);
  }

  void compare_scalars(const std::string& what, const StateDict& a,
                       const StateDict& b) {
    for (const auto& [name, value] : a.scalars()) {
      const auto other = b.scalars().find(name);
      if (other == b.scalars().end())
        to_.note(what + name, kOnlyA);
      else
        to_.compare(what + name, text_of(value), text_of(other->second));
    }
    for (const auto& [name, value] : b.scalars())
      if (!a.has_scalar(name)) to_.note(what + name, kOnlyB);
  }

  void compare_parameter(const checkpoint::SavedParameter& parameter) {
    const auto in_b = b_.parameter(parameter.name);
    if (!in_b) return to_.note(parameter.name, kOnlyA);
    if (b_.manifest().parameters[*in_b].shape != parameter.shape)
      return to_.note(parameter.name, "another shape");
    to_.compare(parameter.name, a_.weight(parameter.name),
                b_.weight(parameter.name));
  }

  void compare_array(const SavedArray& array) {
    const SavedArray* const other = b_.arrays().find(array.name);
    if (other == nullptr) return to_.note(array.name, kOnlyA);
    if (std::tuple(array.axis, array.sharing == Sharing::kOwn) !=
        std::tuple(other->axis, other->sharing == Sharing::kOwn))
      return to_.note(array.name, "of another kind");
    const bool each_rank = checkpoint::SavedArrays::is_per_rank(array) &&
                           checkpoint::SavedArrays::is_per_rank(*other);
    if (!each_rank) return compare_ranks(array, *other, -1, "");
    if (same_world()) {
      for (int rank = 0; rank < a_.manifest().world; ++rank)
        compare_ranks(array, *other, rank, fmt::format(" of rank {}", rank));
    } else if (array.axis == Axis::kElement &&
               array.sharing == Sharing::kMean) {
      compare_elements(array, *other, -1, " (mean of ranks)");
    } else {
      to_.leave_out(array.name, "each rank's own, saved by other ranks");
    }
  }

  void compare_ranks(const SavedArray& a, const SavedArray& b, int rank,
                     const std::string& whose) {
    if (a.axis == Axis::kElement) return compare_elements(a, b, rank, whose);
    const Buffer x = a_.arrays().read_all(a.name, rank);
    const Buffer y = b_.arrays().read_all(b.name, rank);
    const std::string what = a.name + whose;
    if (a.axis == Axis::kRange) return compare_ranges(a, rank, what, x, y);
    if (a.axis != Axis::kParameter)
      return to_.compare(what, in_memory(x.view()), in_memory(y.view()));
    for (std::size_t i = 0; i < a_.manifest().parameters.size(); ++i) {
      const std::string& name = a_.manifest().parameters[i].name;
      const auto k = b_.parameter(name);
      if (k && i < x.size() && *k < y.size())
        to_.compare(what + " of " + name, in_memory(x.view().subview(i, 1)),
                    in_memory(y.view().subview(*k, 1)));
    }
  }

  // If `rank` is -1 and ranks have their own arrays, compares their means.
  void compare_elements(const SavedArray& a, const SavedArray& b, int rank,
                        const std::string& whose) {
    const auto values = [rank](Opened& of, const SavedArray& array,
                               std::size_t parameter) {
      const bool is_mean =
          rank < 0 && checkpoint::SavedArrays::is_per_rank(array);
      return is_mean ? of.mean(array, parameter)
                     : of.elements(array, rank, parameter);
    };
    for (std::size_t i = 0; i < a_.manifest().parameters.size(); ++i) {
      const std::string& name = a_.manifest().parameters[i].name;
      const auto k = b_.parameter(name);
      if (!k) continue;
      const std::string what = a.name + whose + " of " + name;
      const bool in_a = a_.has_all(a, std::max(rank, 0), i);
      const bool in_b = b_.has_all(b, std::max(rank, 0), *k);
      if (in_a && in_b)
        to_.compare(what, values(a_, a, i), values(b_, b, *k));
      else if (in_a != in_b)
        to_.note(what, in_a ? kOnlyA : kOnlyB);
    }
  }

  void compare_ranges(const SavedArray& array, int rank,
                      const std::string& what, const Buffer& x,
                      const Buffer& y) {
    using Key = std::tuple<std::string, std::size_t, std::size_t>;
    std::map<Key, std::size_t> values_of_b;
    const auto key = [](const Opened& of, const SavedPiece& piece) {
      return Key(of.manifest().parameters[piece.parameter].name,
                 piece.range.offset, piece.range.size);
    };
    const auto in_b = b_.arrays().pieces(array.name, rank);
    for (std::size_t k = 0; k < in_b.size(); ++k)
      values_of_b[key(b_, in_b[k])] = k;
    Buffer sorted(x.size(), y.dtype());
    const auto in_a = a_.arrays().pieces(array.name, rank);
    for (std::size_t i = 0; i < in_a.size(); ++i) {
      const auto found = values_of_b.find(key(a_, in_a[i]));
      if (found == values_of_b.end() || in_a.size() != in_b.size())
        return to_.note(what, "of other ranges");
      in_memory(y.view()).read({found->second, 1}, sorted.view().subview(i, 1));
    }
    to_.compare(what, in_memory(x.view()), in_memory(sorted.view()));
  }

  Opened& a_;
  Opened& b_;
  Differences& to_;
};

}  // namespace

void diff(const std::string& a, const std::string& b, bool json) {
  Opened first(a);
  Opened second(b);
  Differences differences(json);
  Comparison(first, second, differences).run();
  differences.conclude();
  if (!differences.none())
    throw std::runtime_error(fmt::format(
        "{} and {} differ in {} arrays and scalars; each has a "
        "line above",
        first.directory(), second.directory(), differences.count()));
}

}  // namespace thinwire::apps::checkpoint_tool
