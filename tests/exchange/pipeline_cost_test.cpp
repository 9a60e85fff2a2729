// SPDX-License-Identifier: Apache-2.0
// The cost of a pipeline against what its transports count in a real run. No
// function here reads or writes a record: what is sent does not depend on it.
#include "exchange/pipeline/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "exchange/codec/sign.h"
#include "exchange/pipeline/pipeline.h"
#include "exchange/support.h"
#include "support/counting_group.h"
#include "thinwire/comm/hosts.h"

namespace thinwire::exchange::pipeline_cost_test {
namespace {

using test::CountingGroup;

struct World {
  int ranks = 1;
  int ranks_per_host = 1;  // 1: flat
};

// Buckets with fewer blocks than servers, blocks of one element, and more bytes
// than are gathered straight to all.
std::vector<BlockLayout> layouts_for(int ranks) {
  std::vector<BlockLayout> layouts;
  layouts.emplace_back(test::units_of({33}), BlockOptions{.world_size = ranks});
  layouts.emplace_back(
      test::units_of({1, 1023, 5000, 1, 33, 20'011, 4096, 7}),
      BlockOptions{.world_size = ranks, .bucket_elements = 6000});
  layouts.emplace_back(
      test::units_of({300'001, 17}),
      BlockOptions{.world_size = ranks, .bucket_elements = 131'072});
  return layouts;
}

RunSteps steps_without_numbers() {
  return {.encode = [](std::size_t, std::uint8_t*) {},
          .average = [](std::size_t, SentRecords, std::uint8_t*) {},
          .take = [](std::size_t, const std::uint8_t*) {}};
}

// Records that only go down travel through the hosts of all ranks.
bool has_groups(const World& world, Direction way) {
  return world.ranks_per_host > 1 && way != Direction::kDown;
}

void run_pipeline(comm::Communicator& comm, const comm::HostGroups& groups,
                  const World& world, const BlockLayout& layout,
                  const Codecs& codecs, Direction way) {
  ThreadPool pool(1);
  const std::vector<int> owners = comm::ranks_by_place(comm.hosts());
  Route route{comm};
  if (has_groups(world, way)) route.groups = &groups;
  if (way == Direction::kDown) route.owners = owners;
  Pipeline(route, pool, layout, codecs, {.direction = way})
      .run(steps_without_numbers());
}

// All ranks compare their own cost.
void expect_cost_of_runs(const World& world, const Codecs& codecs,
                         Direction way) {
  const auto layouts = layouts_for(world.ranks);
  std::vector<std::uint64_t> counted_rounds(layouts.size());
  std::vector<std::uint64_t> rounds(layouts.size());
  std::mutex mutex;
  CountingGroup group(world.ranks, world.ranks_per_host);
  group.run([&](comm::Communicator& flat) {
    const auto comm = flat.by_host(
        comm::find_hosts(flat, {.ranks_per_host = world.ranks_per_host}));
    const comm::HostGroups groups = comm::split_by_host(*comm);
    const comm::RankRoutes rank(comm->hosts(), true);
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      const comm::Counters counters = comm->counters();
      const CountingGroup::Sent before = group.sent_by(comm->rank());
      run_pipeline(*comm, groups, world, layouts[l], codecs, way);
      const CountingGroup::Sent after = group.sent_by(comm->rank());
      const comm::Counters more = comm->counters() - counters;
      const Cost cost = Pipeline::cost(LayoutCounts(layouts[l]), rank, codecs,
                                       way, way != Direction::kDown);
      EXPECT_EQ(cost.bytes_sent(), after.bytes - before.bytes);
      EXPECT_EQ(cost.between_hosts.bytes,
                after.bytes_between_hosts - before.bytes_between_hosts);
      EXPECT_EQ(cost.messages(), after.messages - before.messages);
      EXPECT_EQ(cost.bytes_sent(), more.bytes_sent);
      EXPECT_EQ(cost.between_hosts.bytes, more.bytes_between_hosts);
      EXPECT_EQ(cost.messages(), more.messages);
      const std::lock_guard lock(mutex);
      rounds[l] = std::max(rounds[l], cost.rounds);
      counted_rounds[l] =
          std::max(counted_rounds[l], after.rounds - before.rounds);
    }
  });
  EXPECT_EQ(rounds, counted_rounds);
}

class PipelineCost : public testing::TestWithParam<World> {};

TEST_P(PipelineCost, EqualsTheBytesThatEachRankSends) {
  const Codecs codecs[] = {{codec_of(8), codec_of(8)},
                           {codec_of(4), codec_of(8)},
                           {codec_of(4), codec_of(4)},
                           {sign_codec(), sign_codec()}};
  for (const Codecs& both : codecs)
    for (const Direction way :
         {Direction::kUp, Direction::kDown, Direction::kBoth})
      expect_cost_of_runs(GetParam(), both, way);
}

// The planner knows sizes only.
TEST_P(PipelineCost, FollowsFromTheSizesAlone) {
  const World& world = GetParam();
  const auto servers = static_cast<std::size_t>(world.ranks);
  constexpr std::size_t kBucket = 65'536, kFull = 3, kRest = 20'011;
  LayoutCounts of_sizes;
  of_sizes.add(kFull, chunk_elements(kBucket, servers));
  of_sizes.add(1, chunk_elements(kRest, servers));
  const LayoutCounts of_layout(
      BlockLayout(test::units_of({kFull * kBucket + kRest}),
                  {.world_size = world.ranks, .bucket_elements = kBucket}));
  const Codecs codecs{codec_of(4), sign_codec()};
  for (int r = 0; r < world.ranks; ++r) {
    comm::Hosts hosts{.size = world.ranks, .index = r};
    if (world.ranks_per_host > 1) {
      hosts = {world.ranks / world.ranks_per_host, r / world.ranks_per_host,
               world.ranks_per_host, r % world.ranks_per_host};
      for (int each = 0; each < world.ranks; ++each)
        hosts.ranks.push_back(each);
    }
    const comm::RankRoutes rank(hosts, true);
    EXPECT_EQ(Pipeline::cost(of_sizes, rank, codecs, Direction::kBoth),
              Pipeline::cost(of_layout, rank, codecs, Direction::kBoth));
  }
}

// Twelve ranks gather few bytes in steps.
INSTANTIATE_TEST_SUITE_P(Worlds, PipelineCost,
                         testing::Values(World{1}, World{2}, World{3}, World{4},
                                         World{8}, World{12}, World{4, 2},
                                         World{6, 2}, World{8, 2}, World{8, 4},
                                         World{12, 3}),
                         [](const testing::TestParamInfo<World>& world) {
                           return std::to_string(world.param.ranks) + "_by_" +
                                  std::to_string(world.param.ranks_per_host);
                         });

// Returns the memory of a description, with a generous guess at what the
// standard library adds to each entry of a map.
std::size_t bytes_of(const LayoutCounts& counts) {
  constexpr std::size_t kEntry = 128;
  std::size_t bytes = sizeof counts;
  for (const auto& [chunk, unused] : counts.chunks())
    bytes += kEntry + chunk.size() * sizeof chunk.front();
  for (const auto& [bucket, unused] : counts.buckets())
    bytes += kEntry + bucket.size() * sizeof bucket.front();
  return bytes;
}

// Layers of many sizes, none of which is a multiple of a block's.
TEST(PipelineCost, CountsOfALargeModelNeedLessThanAMegabyte) {
  std::vector<Range> units;
  std::size_t elements = 0;
  for (std::size_t i = 0; elements < 340'000'000; ++i) {
    units.push_back({elements, i % 3 == 0 ? 1001 + 7 * i : 1'000'003 + 11 * i});
    elements = units.back().end();
  }
  const LayoutCounts counts(BlockLayout(units, {.world_size = 256}));
  EXPECT_GT(counts.buckets().size(), 300u);  // no two are alike
  EXPECT_LT(bytes_of(counts), 1'000'000u);

  LayoutCounts of_sizes;
  of_sizes.add(324, chunk_elements(std::size_t{1} << 20, 256));
  of_sizes.add(1, chunk_elements(262'976, 256));
  EXPECT_LT(bytes_of(of_sizes), 10'000u);
}

}  // namespace
}  // namespace thinwire::exchange::pipeline_cost_test
