// SPDX-License-Identifier: Apache-2.0
// The reference's exchange; recordings hold it to the bits of the reference.
#include "deepspeed/compressed_all_reduce.h"

#include <gtest/gtest.h>

#include <vector>

#include "thinwire/comm/local.h"

namespace thinwire::deepspeed::compressed_all_reduce_test {
namespace {

std::vector<float> floats(ConstView values) {
  const auto all = values.as<float>();
  return {all.begin(), all.end()};
}

// A multiple of W lcm(8, W); the server's chunks are a W-th of it.
TEST(DeepSpeedCompressedAllReduce, PadsEachUnitAsTheReferenceDoes) {
  EXPECT_EQ(padded_size(0, 2), 0u);
  EXPECT_EQ(padded_size(1, 1), 8u);
  EXPECT_EQ(padded_size(17, 2), 32u);
  EXPECT_EQ(padded_size(73, 3), 144u);
  EXPECT_EQ(padded_size(64, 8), 64u);
  const std::vector<Range> units = {{0, 17}, {17, 0}, {17, 3}};
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const CompressedAllReduce all(comm, units);
    EXPECT_EQ(all.worker_error().size(), 32u + 16u);
    EXPECT_EQ(all.server_error().size(), 16u + 8u);
  });
}

// 4 elements in 16: the worker's scale is sqrt(16 / 16), and so is the
// server's.
TEST(DeepSpeedCompressedAllReduce, CountsPaddingAndKeepsItsResidual) {
  const std::vector<Range> units = {{1, 4}};
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    CompressedAllReduce all(comm, units);
    std::vector<float> values = {9, 4, 0, 0, 0, 9};
    all.all_reduce(values);
    EXPECT_EQ(values, (std::vector<float>{9, 1, 1, 1, 1, 9}));
    std::vector<float> left(16, -1.0f);
    left[0] = 3;
    EXPECT_EQ(floats(all.worker_error()), left);
    EXPECT_EQ(floats(all.server_error()), std::vector<float>(8, 0.0f));

    values = {9, -4, 0, 0, 0, 9};
    all.all_reduce(values);
    EXPECT_EQ(values, (std::vector<float>{9, -1, -1, -1, -1, 9}));
    EXPECT_EQ(floats(all.worker_error()), std::vector<float>(16, 0.0f));
    all.clear_errors();
  });
}

}  // namespace
}  // namespace thinwire::deepspeed::compressed_all_reduce_test
