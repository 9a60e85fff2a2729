// SPDX-License-Identifier: Apache-2.0
// The residual that other sources of error are added to.
#include <gtest/gtest.h>

#include <vector>

#include "exchange/support.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::added_error_test {
namespace {

using test::Exchange;

class AddedError : public ::testing::TestWithParam<DType> {
 protected:
  // A bf16 residual is rounded when it is stored.
  [[nodiscard]] static float stored(float value) {
    return GetParam() == DType::kFloat32 ? value : to_float(to_bfloat16(value));
  }
};
INSTANTIATE_TEST_SUITE_P(All, AddedError,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16));

TEST_P(AddedError, IsAddedWithItsWeightWhereNotMasked) {
  constexpr float kWeight = 0.125f;
  const std::vector<Range> units = test::awkward_units();
  const auto masked = [](std::size_t i) { return i % 7 == 2; };
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange exchange(comm, units, {.residual_dtype = GetParam()});
    CompressedAllReduce& all = exchange.all;
    all.set_active(
        ActiveMask(all.layout(), [&](std::size_t i) { return !masked(i); }));
    std::vector<float> values = test::layered_values(units.back().end(), 1);
    all.all_reduce(values);

    const std::vector<float> added = test::layered_values(values.size(), 2);
    std::vector<float> worker = test::floats_of(all.worker_error());
    const std::vector<float> server = test::floats_of(all.server_error());
    for (const Block& block : all.layout().blocks()) {
      for (std::size_t i = 0; i < block.values.size; ++i) {
        const std::size_t element = block.values.offset + i;
        if (masked(element)) continue;
        float& e = worker[block.residual.offset + i];
        e = stored(e + kWeight * added[element]);
      }
    }

    ThreadPool pool(3);
    pool.for_each(all.layout().blocks().size(), [&](std::size_t b) {
      const Block& block = all.layout().blocks()[b];
      const float* from = added.data() + block.values.offset;
      all.add_to_worker_error(b, from, kWeight);
    });
    EXPECT_EQ(test::floats_of(all.worker_error()), worker);
    EXPECT_EQ(test::floats_of(all.server_error()), server);
  });
}

TEST(AddedErrorOfABlock, IsRefusedIfNotThere) {
  const std::vector<Range> units = {{0, 4096}};
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Exchange exchange(comm, units);
    const std::vector<float> values(1024, 1.0f);
    test::expect_error(ErrorCode::kInvalidArgument, {"[0, 4)", "got 4"}, [&] {
      exchange.all.add_to_worker_error(4, values.data(), 1);
    });
    EXPECT_EQ(test::floats_of(exchange.all.worker_error()),
              std::vector<float>(4096));
  });
}

}  // namespace
}  // namespace thinwire::exchange::added_error_test
