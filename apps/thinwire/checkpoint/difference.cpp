// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/checkpoint/difference.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "apps/thinwire/checkpoint/json_lines.h"
#include "thinwire/core/buffer.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

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

}  // namespace

void Differences::compare(const std::string& what, const Values& a,
                          const Values& b) {
  if (a.size != b.size)
    return note(what, fmt::format("{} values, {} values", a.size, b.size));
  ++compared_;
  Delta delta;
  for_pieces(a.size, [&](Range range) {
    Buffer x(range.size, a.dtype);
    Buffer y(range.size, b.dtype);
    a.read(range, x.view());
    b.read(range, y.view());
    add(delta, range.offset, x.view(), y.view());
  });
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

void Differences::compare(const std::string& what, const std::string& a,
                          const std::string& b) {
  if (a != b) return note(what, fmt::format("{}, {}", a, b));
  ++compared_;
}

void Differences::note(const std::string& what, const std::string& difference) {
  ++compared_;
  ++found_;
  if (json_) return print_line({{"what", what}, {"difference", difference}});
  fmt::print("{}: {}\n", what, difference);
}

void Differences::leave_out(const std::string& what, const std::string& why) {
  if (json_) return print_line({{"what", what}, {"left_out", why}});
  fmt::print("{}: not compared: {}\n", what, why);
}

std::string Differences::count() const {
  return fmt::format("{} of {}", found_, compared_);
}

void Differences::conclude() const {
  if (json_)
    print_line(
        {{"equal", none()}, {"compared", compared_}, {"differ", found_}});
  else if (none())
    fmt::print("equal: {} arrays and scalars compared\n", compared_);
}

}  // namespace thinwire::apps::checkpoint_tool
