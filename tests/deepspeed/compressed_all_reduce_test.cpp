// SPDX-License-Identifier: Apache-2.0
// The reference's exchange; recordings hold it to the bits of the reference.
#include "deepspeed/compressed_all_reduce.h"

#include <gtest/gtest.h>

#include <vector>

#include "thinwire/comm/local.h"

namespace thinwire::deepspeed::compressed_all_reduce_test {
namespace {

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

}  // namespace
}  // namespace thinwire::deepspeed::compressed_all_reduce_test
