// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/hosts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/hosts_of.h"
#include "comm/ranks_of_hosts.h"
#include "support/environment.h"
#include "support/errors.h"
#include "support/kept_log.h"
#include "support/ranks.h"

namespace thinwire::comm::hosts_test {
namespace {

using Names = std::vector<std::int64_t>;
using Reason = WhyFlat::Reason;

std::vector<OnHost> on(const Names& names) {
  std::vector<OnHost> all;
  for (const std::int64_t name : names) all.push_back({.host = name});
  return all;
}

Hosts found(const std::vector<OnHost>& all, int rank, WhyFlat* why) {
  WhyFlat reason{Reason::kOneHost, "left over"};
  Hosts hosts = hosts_of(all, rank, "A_VARIABLE", reason);
  if (why != nullptr) *why = reason;
  return hosts;
}

Hosts flat(int size, int rank) { return {.size = size, .index = rank}; }

TEST(HostsOf, HostsAreOrderedByTheirLowestRank) {
  const auto all = on({70, 30, 30, 70, 70, 30});
  const std::vector<int> ranks{0, 3, 4, 1, 2, 5};
  WhyFlat why;
  for (int rank = 0; rank < 6; ++rank) {
    const Hosts hosts = found(all, rank, &why);
    EXPECT_EQ(why, WhyFlat());
    EXPECT_EQ(hosts.size, 2);
    EXPECT_EQ(hosts.ranks_per_host, 3);
    EXPECT_EQ(hosts.ranks, ranks);
    EXPECT_EQ(
        ranks[static_cast<std::size_t>(hosts.index * 3 + hosts.local_rank)],
        rank);
  }
}

TEST(HostsOf, HostsAreFlatIfHierarchyGainsNothing) {
  WhyFlat why;
  EXPECT_EQ(found(on({5}), 0, &why), flat(1, 0));
  EXPECT_EQ(why, WhyFlat());
  EXPECT_EQ(found(on({5, 9, 7}), 2, &why), flat(3, 2));
  EXPECT_EQ(why, WhyFlat());
  EXPECT_EQ(found(on({5, 5, 5}), 1, &why), flat(3, 1));
  EXPECT_EQ(why, (WhyFlat{Reason::kOneHost, "all 3 ranks are on one host"}));
  EXPECT_EQ(found(on({5, 9, 5}), 1, &why), flat(3, 1));
  EXPECT_EQ(why, (WhyFlat{Reason::kUnequalHosts,
                          "hosts hold unequal numbers of ranks: 2, 1"}));
}

TEST(HostsOf, AGivenNumberOverridesDetection) {
  for (int per_host = 1; per_host <= 8; ++per_host) {
    auto all = on(Names(24, 5));
    for (OnHost& one : all) {
      one.ranks_per_host = per_host;
      one.announced = 24;
    }
    WhyFlat why;
    if (24 % per_host != 0) continue;
    const Hosts hosts = found(all, 13, &why);
    EXPECT_EQ(why, WhyFlat());
    EXPECT_EQ(hosts.size, 24 / per_host);
    EXPECT_EQ(hosts.index, 13 / per_host);
    EXPECT_EQ(hosts.local_rank, 13 % per_host);
    EXPECT_EQ(hosts.ranks.size(), per_host == 1 ? 0u : 24u);
  }
}

TEST(HostsOf, RefusesImpossibleNumbers) {
  auto all = on({5, 5, 9, 9});
  for (OnHost& one : all) one.ranks_per_host = 3;
  for (int rank = 0; rank < 4; ++rank) {
    test::expect_invalid({"THINWIRE_RANKS_PER_HOST", "divisor", "4", "got 3"},
                         [&] { (void)found(all, rank, nullptr); });
  }
  all[2].ranks_per_host = 2;
  test::expect_invalid({"same on all ranks", "got 3 on rank 0 and 2 on rank 2"},
                       [&] { (void)found(all, 0, nullptr); });
}

TEST(HostsOf, HostsAreFlatOnAllRanksIfALauncherContradicts) {
  auto all = on({5, 5, 9, 9});
  for (OnHost& one : all) one.announced = 2;
  EXPECT_EQ(found(all, 1, nullptr).size, 2);
  all[2].announced = 1;
  const test::KeptLog warnings(LogLevel::kWarning);
  for (int rank = 0; rank < 4; ++rank) {
    WhyFlat why;
    EXPECT_EQ(found(all, rank, &why), flat(4, rank));
    EXPECT_EQ(why, (WhyFlat{Reason::kContradiction,
                            "2 ranks have the boot id or host name of rank 2, "
                            "but A_VARIABLE = 1"}));
  }
  ASSERT_EQ(warnings.lines().size(), 1u);  // of rank 0
  EXPECT_EQ(warnings.count("THINWIRE_RANKS_PER_HOST"), 1u);
}

// Containers of one machine: a launcher in each, one rank in each.
TEST(HostsOf, ContainersOnOneMachineAreFlatByDefault) {
  auto all = on({5, 5, 5, 5});
  for (OnHost& one : all) one.announced = 1;
  WhyFlat why;
  EXPECT_EQ(found(all, 3, &why), flat(4, 3));
  EXPECT_EQ(why.reason, Reason::kContradiction);
  for (OnHost& one : all) one.ranks_per_host = 2;
  EXPECT_EQ(found(all, 3, &why).size, 2);
  EXPECT_EQ(why, WhyFlat());
}

// (group)
class FindHosts : public ::testing::TestWithParam<test::Group> {};

TEST_P(FindHosts, ThisMachineIsOneHost) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    WhyFlat why{Reason::kOneHost, "left over"};
    EXPECT_EQ(find_hosts(comm, {}, &why), flat(comm.size(), comm.rank()));
    if (comm.size() == 1) {
      EXPECT_EQ(why, WhyFlat());
    } else {
      EXPECT_EQ(why.reason, Reason::kOneHost);
      EXPECT_EQ(why.text, "all " + std::to_string(comm.size()) +
                              " ranks are on one host");
    }
  });
}

TEST_P(FindHosts, TheOptionOverridesTheVariable) {
  const int size = GetParam().world_size;
  const test::ScopedVariable variable("THINWIRE_RANKS_PER_HOST", "1");
  test::run_ranks(GetParam(), [&](Communicator& comm) {
    EXPECT_EQ(find_hosts(comm), flat(size, comm.rank()));
    if (size % 2 != 0 || size == 2) return;
    const Hosts hosts = find_hosts(comm, {.ranks_per_host = 2});
    EXPECT_EQ(hosts.size, size / 2);
    EXPECT_EQ(hosts.ranks_per_host, 2);
    EXPECT_EQ(hosts.index, comm.rank() / 2);
    EXPECT_EQ(hosts.local_rank, comm.rank() % 2);
  });
}

TEST_P(FindHosts, HostsMayHaveAnyNumberOfRanks) {
  using Ranks = std::vector<std::vector<int>>;
  Ranks together(1);
  Ranks apart;
  for (int rank = 0; rank < GetParam().world_size; ++rank) {
    together[0].push_back(rank);
    apart.push_back({rank});
  }
  test::run_ranks(GetParam(), [&](Communicator& comm) {
    EXPECT_EQ(ranks_of_hosts(comm), together);
    EXPECT_EQ(ranks_of_hosts(comm, {.ranks_per_host = 1}), apart);
  });
}

// Found out, used, and seen in what is sent.
TEST_P(FindHosts, TheVariableDividesOneMachineIntoHosts) {
  const int size = GetParam().world_size;
  if (size < 4 || size % 2 != 0) return;
  const test::ScopedVariable variable("THINWIRE_RANKS_PER_HOST", "2");
  test::run_ranks(GetParam(), [&](Communicator& comm) {
    WhyFlat why{Reason::kOneHost, "left over"};
    const Hosts hosts = find_hosts(comm, {}, &why);
    EXPECT_EQ(why, WhyFlat());
    EXPECT_EQ(hosts.size, size / 2);
    EXPECT_EQ(hosts.index, comm.rank() / 2);
    const auto grouped = comm.by_host(hosts);
    EXPECT_EQ(grouped->hosts(), hosts);
    std::vector<float> data(64, 1.0f);
    grouped->all_reduce(data);
    const Counters sent = grouped->counters();
    EXPECT_LT(sent.bytes_between_hosts, sent.bytes_sent);
    EXPECT_TRUE(comm.hosts().is_flat());
    comm.all_reduce(data);
    const Counters flat_sent = comm.counters();
    EXPECT_EQ(flat_sent.bytes_between_hosts, flat_sent.bytes_sent);
  });
}

TEST_P(FindHosts, RefusesOnEveryRankAndStaysUsable) {
  const int size = GetParam().world_size;
  test::run_ranks(GetParam(), [&](Communicator& comm) {
    // What rank 0 alone gives.
    const int given = comm.rank() == 0 ? -1 : 0;
    try {
      (void)find_hosts(comm, {.ranks_per_host = given});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
    test::expect_invalid({"divisor"}, [&] {
      (void)find_hosts(comm, {.ranks_per_host = size + 1});
    });
    comm.barrier();
  });
}

// A launcher counts processes: what it says is of no account for threads.
TEST_P(FindHosts, IsFlatIfALauncherContradictsDetection) {
  const auto& group = GetParam();
  const std::string size = std::to_string(group.world_size);
  const test::ScopedVariable all("OMPI_COMM_WORLD_SIZE", size.c_str());
  const test::ScopedVariable here("OMPI_COMM_WORLD_LOCAL_SIZE", "77");
  test::run_ranks(group, [&](Communicator& comm) {
    if (group.backend == "local") {
      EXPECT_EQ(find_hosts(comm), flat(comm.size(), comm.rank()));
      return;
    }
    WhyFlat why;
    EXPECT_EQ(find_hosts(comm, {}, &why), flat(comm.size(), comm.rank()));
    if (comm.size() > 1) {
      EXPECT_EQ(why.text, size +
                              " ranks have the boot id or host name of rank 0, "
                              "but OMPI_COMM_WORLD_LOCAL_SIZE = 77");
    } else {
      EXPECT_EQ(why, WhyFlat());
    }
    EXPECT_EQ(ranks_of_hosts(comm).size(),
              static_cast<std::size_t>(comm.size()));
  });
}

TEST_P(FindHosts, GroupsHaveTheRanksOfAHostAndOneRankPerHost) {
  const int size = GetParam().world_size;
  if (size < 4 || size % 2 != 0) return;
  test::run_ranks(GetParam(), [&](Communicator& flat_comm) {
    const auto comm =
        flat_comm.by_host(find_hosts(flat_comm, {.ranks_per_host = 2}));
    HostGroups groups = split_by_host(*comm);
    EXPECT_EQ(groups.inside->size(), 2);
    EXPECT_EQ(groups.inside->rank(), comm->rank() % 2);
    EXPECT_EQ(groups.between->size(), size / 2);
    EXPECT_EQ(groups.between->rank(), comm->rank() / 2);
    EXPECT_TRUE(groups.between->hosts().is_flat());

    const Counters before = comm->counters();
    std::vector<float> data(64, 1.0f);
    groups.inside->all_reduce(data);
    EXPECT_EQ(data[5], 2.0f);
    const Counters inside = comm->counters();
    EXPECT_EQ(inside.bytes_sent - before.bytes_sent, 64u * 4);
    EXPECT_EQ(inside.bytes_between_hosts, before.bytes_between_hosts);
    groups.between->all_reduce(data);
    EXPECT_EQ(data[5], static_cast<float>(size));
    const Counters both = comm->counters();
    EXPECT_EQ(both.bytes_between_hosts - inside.bytes_between_hosts,
              both.bytes_sent - inside.bytes_sent);
    EXPECT_EQ(both.messages - before.messages,
              groups.inside->counters().messages +
                  groups.between->counters().messages);
    EXPECT_GT(both.busy_seconds, before.busy_seconds);
  });
}

TEST_P(FindHosts, HostsMustFitTheGroup) {
  const int size = GetParam().world_size;
  test::run_ranks(GetParam(), [&](Communicator& comm) {
    const auto refused = [&](Hosts hosts) {
      test::expect_invalid({"CommunicatorOptions.hosts"},
                           [&] { (void)comm.by_host(hosts); });
    };
    Hosts hosts{.ranks_per_host = 2 * size};
    refused(hosts);
    if (size < 4 || size % 2 != 0) return;
    const Hosts good = find_hosts(comm, {.ranks_per_host = 2});
    hosts = good;
    std::swap(hosts.ranks[0], hosts.ranks[1]);
    refused(hosts);
    hosts = good;
    hosts.ranks[1] = 0;
    refused(hosts);
    hosts = good;
    hosts.local_rank = 1 - hosts.local_rank;
    refused(hosts);
    hosts = good;
    hosts.index = hosts.size;
    refused(hosts);
  });
}

INSTANTIATE_TEST_SUITE_P(All, FindHosts, ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace thinwire::comm::hosts_test
