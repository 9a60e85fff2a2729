// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/ref/floats.h"
#include "kernels/ref/ordered_sum.h"

namespace thinwire::kernels::ref {
namespace {

template <class Term>
double chunk_sum(ConstView values, std::size_t chunk, Term term) {
  require_chunk(values, chunk);
  const std::size_t begin = chunk * kSumChunk;
  const std::size_t end = std::min(begin + kSumChunk, values.size());
  return visit_floats(values, [&](const auto* x) {
    OrderedSum sum;
    for (std::size_t i = begin; i < end; ++i) {
      sum.add(term(static_cast<double>(to_float(x[i]))));
    }
    return sum.total();
  });
}

}  // namespace

double chunk_sum_of_squares(ConstView values, std::size_t chunk) {
  return chunk_sum(values, chunk, [](double x) { return x * x; });
}

double chunk_sum_of_abs(ConstView values, std::size_t chunk) {
  return chunk_sum(values, chunk, [](double x) { return std::abs(x); });
}

}  // namespace thinwire::kernels::ref
