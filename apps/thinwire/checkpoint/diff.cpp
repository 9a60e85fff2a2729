// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>

#include "apps/thinwire/checkpoint/commands.h"
#include "apps/thinwire/checkpoint/opened.h"
#include "thinwire/core/buffer.h"

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

double value_at(ConstView values, std::size_t i) {
  switch (values.dtype()) {
    case DType::kFloat32:
      return static_cast<double>(values.as<float>()[i]);
    case DType::kFloat16:
      return static_cast<double>(to_float(values.as<Half>()[i]));
    case DType::kBFloat16:
      return static_cast<double>(to_float(values.as<BFloat16>()[i]));
    case DType::kFloat64:
      return values.as<double>()[i];
    case DType::kInt32:
      return values.as<std::int32_t>()[i];
    case DType::kInt64:
      return static_cast<double>(values.as<std::int64_t>()[i]);
    case DType::kUInt8:
      return values.as<std::uint8_t>()[i];
  }
  return 0;
}

struct Delta {
  std::uint64_t count = 0;
  double most = 0;  // NaN if only one of the two is
  std::size_t first = 0;
  double a = 0;
  double b = 0;
};

// Compares bits if the dtypes are the same, otherwise values.
void add(Delta& delta, std::size_t offset, ConstView a, ConstView b) {
  const bool same_dtype = a.dtype() == b.dtype();
  if (same_dtype && std::memcmp(a.data(), b.data(), a.bytes()) == 0) return;
  const std::size_t each = size_of(a.dtype());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = value_at(a, i);
    const double y = value_at(b, i);
    const bool equal =
        same_dtype
            ? std::memcmp(static_cast<const std::byte*>(a.data()) + i * each,
                          static_cast<const std::byte*>(b.data()) + i * each,
                          each) == 0
            : x == y || (std::isnan(x) && std::isnan(y));
    if (equal) continue;
    if (delta.count++ == 0) {
      delta.first = offset + i;
      delta.a = x;
      delta.b = y;
    }
    const double distance = std::abs(x - y);
    if (!(distance <= delta.most)) delta.most = distance;
  }
}

// JSON has only finite numbers.
OrderedJson number(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{}", value);
}

// Prints and counts differences.
class Differences {
 public:
  explicit Differences(bool json) : json_(json) {}

  // `what` is, for example, "exp_avg of h.0.w"; `first` is counted in its
  // elements.
  void compare(const std::string& what, const Values& a, const Values& b) {
    if (a.size != b.size)
      return note(what, fmt::format("{} values, {} values", a.size, b.size));
    ++compared_;
    Delta delta;
    constexpr std::size_t kPiece = std::size_t{1} << 20;
    for (std::size_t at = 0; at < a.size; at += kPiece) {
      const Range range{at, std::min(kPiece, a.size - at)};
      Buffer x(range.size, a.dtype);
      Buffer y(range.size, b.dtype);
      a.read(range, x.view());
      b.read(range, y.view());
      add(delta, at, x.view(), y.view());
    }
    if (delta.count == 0) return;
    ++found_;
    if (json_)
      return print_line({{"what", what},
                         {"values", a.size},
                         {"differ", delta.count},
                         {"max_delta", number(delta.most)},
                         {"first", delta.first},
                         {"a", number(delta.a)},
                         {"b", number(delta.b)}});
    fmt::print(
        "{}: {} of {} values differ, max |delta| {:.6g}; first at {}: {} {}\n",
        what, delta.count, a.size, delta.most, delta.first, delta.a, delta.b);
  }

  void compare(const std::string& what, const std::string& a,
               const std::string& b) {
    if (a != b) return note(what, fmt::format("{}, {}", a, b));
    ++compared_;
  }

  // Counts a difference that has no single values to compare.
  void note(const std::string& what, const std::string& difference) {
    ++compared_;
    ++found_;
    if (json_) return print_line({{"what", what}, {"difference", difference}});
    fmt::print("{}: {}\n", what, difference);
  }

  // Names something that is not compared, and counts no difference.
  void leave_out(const std::string& what, const std::string& why) {
    if (json_) return print_line({{"what", what}, {"left_out", why}});
    fmt::print("{}: not compared: {}\n", what, why);
  }

  bool none() const noexcept { return found_ == 0; }
  // Returns a text like "3 of 120".
  std::string count() const {
    return fmt::format("{} of {}", found_, compared_);
  }

  void conclude() const {
    if (json_)
      print_line(
          {{"equal", none()}, {"compared", compared_}, {"differ", found_}});
    else if (none())
      fmt::print("equal: {} arrays and scalars compared\n", compared_);
  }

 private:
  bool json_;
  std::uint64_t compared_ = 0;
  std::uint64_t found_ = 0;
};

const std::string& name_of(const auto& item) {
  if constexpr (requires { item.name; })
    return item.name;
  else
    return item.first;
}

class Comparison {
 public:
  Comparison(Opened& a, Opened& b, Differences& to) : a_(a), b_(b), to_(to) {}

  void run() {
    const auto& a = a_.manifest();
    const auto& b = b_.manifest();
    compare_facts();
    pair_up("", a.parameters, b.parameters, [&](const auto& x, const auto& y) {
      if (x.shape != y.shape) return to_.note(x.name, "another shape");
      to_.compare(x.name, a_.weight(x.name), b_.weight(x.name));
    });
    for (const auto& other : a.others)
      if (b_.has_weight(other.name))
        to_.compare(other.name, a_.weight(other.name), b_.weight(other.name));
      else
        to_.note(other.name, kOnlyA);
    for (const auto& other : b.others)
      if (!a_.has_weight(other.name)) to_.note(other.name, kOnlyB);
    pair_up("", a.arrays, b.arrays,
            [&](const auto& x, const auto& y) { compare_array(x, y); });
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
    compare_states("extra ", a_.arrays().extra(), b_.arrays().extra());
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
      compare_states(fmt::format("extra of rank {} ", r),
                     a_.arrays().extra_of_rank(r),
                     b_.arrays().extra_of_rank(r));
  }

  static bool has_alias(const checkpoint::Manifest& manifest,
                        const std::pair<std::string, std::string>& alias) {
    return std::ranges::find(manifest.aliases, alias) != manifest.aliases.end();
  }

  // Calls `both` with what has the same name, and notes the rest.
  template <class Items, class Both>
  void pair_up(const std::string& what, const Items& a, const Items& b,
               const Both& both) {
    std::map<std::string_view, decltype(&*b.begin())> of_a, of_b;
    for (const auto& item : a) of_a.emplace(name_of(item), &item);
    for (const auto& item : b) of_b.emplace(name_of(item), &item);
    for (const auto& item : a)
      if (const auto at = of_b.find(name_of(item)); at != of_b.end())
        both(item, *at->second);
      else
        to_.note(what + name_of(item), kOnlyA);
    for (const auto& item : b)
      if (!of_a.contains(name_of(item))) to_.note(what + name_of(item), kOnlyB);
  }

  void compare_states(const std::string& what, const StateDict& a,
                      const StateDict& b) {
    compare_scalars(what, a, b);
    pair_up(what, a.arrays(), b.arrays(), [&](const auto& x, const auto& y) {
      to_.compare(what + x.first, in_memory(x.second.view()),
                  in_memory(y.second.view()));
    });
  }

  void compare_scalars(const std::string& what, const StateDict& a,
                       const StateDict& b) {
    pair_up(what, a.scalars(), b.scalars(), [&](const auto& x, const auto& y) {
      to_.compare(what + x.first, text_of(x.second), text_of(y.second));
    });
  }

  void compare_array(const SavedArray& array, const SavedArray& other) {
    if (std::tuple(array.axis, array.sharing == Sharing::kOwn) !=
        std::tuple(other.axis, other.sharing == Sharing::kOwn))
      return to_.note(array.name, "of another kind");
    const bool each_rank = checkpoint::SavedArrays::is_per_rank(array) &&
                           checkpoint::SavedArrays::is_per_rank(other);
    if (!each_rank) return compare_ranks(array, other, -1, "");
    if (same_world()) {
      for (int rank = 0; rank < a_.manifest().world; ++rank)
        compare_ranks(array, other, rank, fmt::format(" of rank {}", rank));
    } else if (array.axis == Axis::kElement &&
               array.sharing == Sharing::kMean) {
      compare_elements(array, other, -1, " (mean of ranks)");
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
