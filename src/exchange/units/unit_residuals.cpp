// SPDX-License-Identifier: Apache-2.0
#include "exchange/units/unit_residuals.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/ranges.h"
#include "core/set_to_zero.h"
#include "exchange/checks.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::exchange {

namespace {

void copy_values(ConstView from, View to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.bytes());
}

template <class AnyView>
AnyView part(AnyView whole, Range at) {
  return whole.subview(at.offset, at.size);
}

}  // namespace

UnitResiduals::UnitResiduals(const Route& route,
                             std::span<const std::size_t> sizes, DType dtype,
                             std::span<const std::size_t> hosts_ranks)
    : places_(route.comm, route.groups) {
  const auto ranks = static_cast<std::size_t>(route.comm.size());
  std::size_t offset = 0;
  std::size_t served = 0;
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    const std::size_t first = cuts_.size();
    const Range whole{offset, sizes[unit]};
    for (; offset < whole.end(); offset = cuts_.back().range.end()) {
      const std::size_t size =
          std::min(kernels::kMostSummed, whole.end() - offset);
      const std::size_t place = hosts_ranks.empty()
                                    ? cuts_.size() % ranks
                                    : hosts_ranks[unit] * places_.workers +
                                          cuts_.size() % places_.workers;
      cuts_.push_back({{offset, size}, place, served});
      if (serves(cuts_.back())) served += size;
    }
    units_.push_back({whole, {first, cuts_.size() - first}});
  }
  worker_ = Buffer(offset, dtype);
  server_ = Buffer(served, dtype);
}

Residuals UnitResiduals::of(const BlockLayout& layout,
                            const std::vector<bool>& is_cut) {
  std::vector<Range> encoded;
  std::vector<Range> served;
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    encoded.emplace_back();
    served.emplace_back();
    if (!is_cut[b]) continue;
    const Cut& cut =
        *std::ranges::lower_bound(cuts_, layout.blocks()[b].residual.offset, {},
                                  [](const Cut& c) { return c.range.offset; });
    if (encodes(cut.place)) encoded.back() = cut.range;
    if (serves(cut)) served.back() = cut.in_server();
  }
  return {ResidualSide(worker(), std::move(encoded)),
          ResidualSide(server(), std::move(served))};
}

std::vector<Range> UnitResiduals::encoded() const {
  std::vector<Range> ranges;
  for (const Cut& cut : cuts_)
    if (encodes(cut.place)) append_joined(ranges, cut.range);
  return ranges;
}

std::vector<Range> UnitResiduals::served() const {
  std::vector<Range> ranges;
  for (const Cut& cut : cuts_)
    if (serves(cut)) append_joined(ranges, cut.range);
  return ranges;
}

std::size_t UnitResiduals::bytes_of(std::size_t unit,
                                    const Codec& codec) const {
  std::size_t bytes = 0;
  for (const Cut& cut : cuts_of(unit))
    bytes += bytes_at(cut.place, cut.range.size, codec);
  return bytes;
}

std::size_t UnitResiduals::bytes_at(std::size_t place, std::size_t elements,
                                    const Codec& codec) const {
  if (!encodes(place)) return 0;
  return codec.record_bytes(elements) *
         (place == places_.own ? places_.workers - 1 : 1);
}

void UnitResiduals::add_blocks(std::size_t unit, std::size_t at,
                               std::vector<Block>& blocks) const {
  for (const Cut& cut : cuts_of(unit)) {
    blocks.push_back(
        {{at, cut.range.size}, cut.range, static_cast<int>(cut.place)});
    at += cut.range.size;
  }
}

Buffer UnitResiduals::server_error() const {
  Buffer all(worker_.size(), worker_.dtype());
  for (const Cut& cut : cuts_)
    if (serves(cut))
      copy_values(part(server_.view(), cut.in_server()),
                  part(all.view(), cut.range));
  return all;
}

void UnitResiduals::load(ConstView worker, ConstView server) {
  require_residual("the worker residual", worker, worker_.dtype(), size());
  require_residual("the server residual", server, worker_.dtype(), size());
  set_to_zero(worker_.view());
  for (const Cut& cut : cuts_) {
    if (encodes(cut.place))
      copy_values(part(worker, cut.range), part(worker_.view(), cut.range));
    if (serves(cut))
      copy_values(part(server, cut.range),
                  part(server_.view(), cut.in_server()));
  }
}

}  // namespace thinwire::exchange
