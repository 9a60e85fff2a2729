// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/rounded_sum.h"

#include <cmath>
#include <vector>

#include "core/require.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::deepspeed {

namespace {

/// Computes values[i] = change(values[i]), rounded to their dtype.
template <class Change>
void change_each(View values, Change change) {
  Buffer wide = converted(values, DType::kFloat32);
  for (float& value : wide.as<float>()) value = change(value);
  kernels::convert(wide.view(), values);
}

}  // namespace

void require_predivide(double predivide) {
  require(std::isfinite(predivide) && predivide > 0, "predivide",
          "finite and > 0", predivide);
}

Buffer converted(ConstView values, DType dtype) {
  Buffer result(values.size(), dtype);
  kernels::convert(values, result.view());
  return result;
}

Buffer rounded_sum(comm::Communicator& comm, ConstView values,
                   std::span<const std::size_t> counts,
                   const SumScaling& scaling, DType wire) {
  const DType dtype = values.dtype();
  Buffer scaled = converted(values, scaling.on_wire ? wire : dtype);
  if (scaling.divisor != 1)
    change_each(scaled.view(), [&](float x) { return x / scaling.divisor; });
  if (scaling.before != 1)
    change_each(scaled.view(), [&](float x) { return x * scaling.before; });
  const Buffer sent = converted(scaled.view(), wire);

  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t count = counts[static_cast<std::size_t>(comm.rank())];
  Buffer received(ranks * count, wire);
  comm.all_to_all(sent.view(), counts, received.view(),
                  std::vector<std::size_t>(ranks, count));
  const View sum = received.view().subview(0, count);
  for (std::size_t r = 1; r < ranks; ++r)
    kernels::accumulate(sum, received.view().subview(r * count, count));
  if (scaling.factor != 1)
    change_each(sum, [&](float x) { return x * scaling.factor; });
  return converted(sum, dtype);
}

}  // namespace thinwire::deepspeed
