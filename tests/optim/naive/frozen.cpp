// SPDX-License-Identifier: Apache-2.0
#include "optim/naive/frozen.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace thinwire::test::naive {
namespace {

// Denominators above this many times their block's median are cut off.
constexpr float kHeavy = 10;

// Of the elements of `ranges` that take part; none: nothing.
std::optional<float> median(const Floats& d, const Flags& active,
                            const std::vector<Range>& ranges) {
  Floats values;
  for (const Range& range : ranges)
    for (std::size_t i = range.offset; i < range.end(); ++i)
      if (active[i] != 0) values.push_back(d[i]);
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool contains(Range outer, Range inner) {
  return outer.offset <= inner.offset && inner.end() <= outer.end();
}

}  // namespace

Frozen::Frozen(const Setup& setup, std::int64_t t, Floats& m, Floats& v,
               double gate)
    : denominator(v.size()),
      active(v.size()),
      setup_(setup),
      blocks_(blocks(setup.layout)),
      sleeping_(v.size()),
      heard_(v.size()),
      ratio_(v.size(), 1.0f),
      gate_(gate) {
  for (const Parameter& p : setup_.layout.parameters()) {
    const Numbers k = numbers(setup_.groups[p.group], t, t);
    for (std::size_t i = p.offset; i < p.offset + p.size; ++i) {
      denominator[i] = k.denominator(v[i]);
      const bool wanted = setup_.mask[i] != 0;
      sleeping_[i] = wanted && v[i] == 0 ? 1 : 0;
      active[i] = wanted && v[i] != 0 && std::isfinite(denominator[i]) ? 1 : 0;
      if (!std::isfinite(denominator[i])) m[i] = v[i] = 0;
    }
    for (const Range& block : blocks_)
      if (contains({p.offset, p.size}, block)) group_.push_back(p.group);
  }
  find_medians();
  cut_heavy(m, v);
  raise_to_floors();
}

// Of the block, else of its parameter, else of the model, else 1.
void Frozen::find_medians() {
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    std::optional<float> found = median(denominator, active, {blocks_[b]});
    for (const Parameter& p : setup_.layout.parameters())
      if (!found && contains({p.offset, p.size}, blocks_[b]))
        found = median(denominator, active, {{p.offset, p.size}});
    if (!found) found = median(denominator, active, blocks_);
    medians_.push_back(found.value_or(1.0f));
  }
}

void Frozen::cut_heavy(Floats& m, Floats& v) {
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const float most = kHeavy * medians_[b];
    for (std::size_t i = blocks_[b].offset; i < blocks_[b].end(); ++i) {
      if (active[i] == 0 || denominator[i] <= most) continue;
      const float r = most / denominator[i];
      ratio_[i] = r;
      denominator[i] = most;
      m[i] = r * m[i];
      v[i] = r * (r * v[i]);
    }
  }
}

// Elements that are out enter neither the mean nor its count. They get the
// denominator that they come to life with.
void Frozen::raise_to_floors() {
  floors.clear();
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    std::vector<double> squares;
    double count = 0;
    for (std::size_t i = blocks_[b].offset; i < blocks_[b].end(); ++i) {
      const bool live = active[i] != 0;
      const double d = std::min(denominator[i], kHeavy * medians_[b]);
      squares.push_back(live ? d * d : 0);
      count += live ? 1 : 0;
    }
    const double rms =
        count > 0 ? std::sqrt(sum(squares) / count) : medians_[b];
    floors.push_back(static_cast<float>(setup_.denom_floor * rms));
    for (std::size_t i = blocks_[b].offset; i < blocks_[b].end(); ++i) {
      // What only the caller's mask leaves out moves in exact steps.
      const bool has_own = sleeping_[i] == 0 && std::isfinite(denominator[i]);
      denominator[i] =
          std::max(has_own ? denominator[i] : medians_[b], floors.back());
    }
  }
}

std::vector<std::size_t> Frozen::revive(const std::vector<Floats>& grads) {
  std::vector<std::size_t> revived;
  for (std::size_t i = 0; i < active.size(); ++i) {
    const bool wakes =
        sleeping_[i] != 0 &&
        (heard_[i] != 0 ||
         std::any_of(grads.begin(), grads.end(),
                     [i](const Floats& g) { return g[i] != 0; }));
    if (!wakes) continue;
    sleeping_[i] = 0;
    active[i] = 1;
    revived.push_back(i);
  }
  return revived;
}

void Frozen::remember(const Floats& grads) {
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (grads[i] != 0) heard_[i] = 1;
}

void Frozen::restore(Floats& m) const {
  for (std::size_t i = 0; i < m.size(); ++i)
    if (ratio_[i] != 1) m[i] /= ratio_[i];
}

std::vector<Floats> Frozen::inputs(const std::vector<Floats>& grads,
                                   double clip) const {
  std::vector<Floats> x = grads;
  for (Floats& values : x)
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const double beta2 = setup_.groups[group_[b]].beta2;
      const double most = 1 / std::sqrt(1 - beta2);
      const double limit = most * gate_ * medians_[b];
      for (std::size_t i = blocks_[b].offset; i < blocks_[b].end(); ++i)
        values[i] *= ratio_[i];
      const double squares = sum_of_squares(values, blocks_[b]) * clip * clip;
      for (std::size_t i = blocks_[b].offset; i < blocks_[b].end(); ++i) {
        const auto bound = static_cast<float>(most / clip * denominator[i]);
        if (squares > limit * limit)
          values[i] = std::min(std::max(values[i], -bound), bound);
        values[i] *= static_cast<float>(clip);
      }
    }
  return x;
}

Counts Frozen::counts() const {
  Counts counts;
  for (std::size_t i = 0; i < active.size(); ++i) {
    counts.masked += active[i] == 0 ? 1 : 0;
    counts.heavy += ratio_[i] != 1 ? 1 : 0;
  }
  return counts;
}

}  // namespace thinwire::test::naive
