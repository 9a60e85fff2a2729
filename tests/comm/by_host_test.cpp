// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "comm/values.h"
#include "support/hosts.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "thinwire/comm/hosts.h"

namespace thinwire::comm::by_host_test {
namespace {

using test::is_float;
using test::Placing;
using test::same_bytes;

struct Shape {
  test::Group group;
  int ranks_per_host = 1;
  Placing placing = Placing::kBlocks;
};

std::string name_of(const ::testing::TestParamInfo<Shape>& info) {
  const Shape& shape = info.param;
  return shape.group.backend + std::to_string(shape.group.world_size) + "_g" +
         std::to_string(shape.ranks_per_host) +
         (shape.placing == Placing::kBlocks ? "_blocks" : "_round_robin");
}

std::vector<Shape> shapes() {
  std::vector<Shape> result;
  for (const test::Group& group : test::groups()) {
    result.push_back({.group = group});  // flat
    for (const int per_host : {2, 4}) {
      if (group.world_size < 4 || group.world_size % per_host != 0) continue;
      for (const Placing placing : {Placing::kBlocks, Placing::kRoundRobin})
        result.push_back({group, per_host, placing});
    }
  }
  return result;
}

Hosts hosts_of(const Shape& shape, int rank) {
  return test::hosts_of(shape.group.world_size, shape.ranks_per_host,
                        shape.placing, rank);
}

double value(DType dtype, int rank, std::size_t i) {
  return is_float(dtype) ? test::uneven(rank, i) : test::sample(rank, i);
}

// One element, by a plain loop: inside every host, then over the hosts.
template <class T>
T reduced(const std::vector<T>& of_ranks, int ranks_per_host, ReduceOp op) {
  const auto merge = [op](T a, T b) {
    return op == ReduceOp::kMax ? std::max(a, b) : static_cast<T>(a + b);
  };
  const auto step = static_cast<std::size_t>(ranks_per_host);
  T total{};
  for (std::size_t host = 0; host < of_ranks.size(); host += step) {
    T sum = of_ranks[host];
    for (std::size_t l = 1; l < step; ++l) sum = merge(sum, of_ranks[host + l]);
    total = host == 0 ? sum : merge(total, sum);
  }
  if (op != ReduceOp::kMean) return total;
  return static_cast<T>(
      total * static_cast<T>(1.0 / static_cast<double>(of_ranks.size())));
}

// What all_reduce has to give, unrounded where `out` is wider than `dtype`.
Buffer expected(const Shape& shape, DType dtype, DType out, ReduceOp op,
                std::size_t n) {
  Hosts hosts = hosts_of(shape, 0);
  for (int r = 0;
       hosts.ranks.size() < static_cast<std::size_t>(shape.group.world_size);
       ++r)
    hosts.ranks.push_back(r);
  // Flat: one sum over all ranks, in their order.
  const int in_one =
      shape.ranks_per_host == 1 ? shape.group.world_size : shape.ranks_per_host;
  std::vector<Buffer> inputs;
  for (const int rank : hosts.ranks)
    inputs.push_back(test::filled(
        dtype, n, [&](std::size_t i) { return value(dtype, rank, i); }));
  const bool is_wide = dtype == DType::kFloat64 || !is_float(dtype);
  std::vector<double> wide(inputs.size());
  std::vector<float> narrow(inputs.size());
  return test::filled(out, n, [&](std::size_t i) -> double {
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      wide[r] = test::get(inputs[r].view(), i);
      narrow[r] = static_cast<float>(wide[r]);
    }
    return is_wide ? reduced(wide, in_one, op) : reduced(narrow, in_one, op);
  });
}

using Pieces = std::vector<Range>;

// pieces[r], in the order of places, of ranks, and of ranks from the last on.
std::vector<Pieces> all_pieces(const Shape& shape, std::size_t n) {
  const int ranks = shape.group.world_size;
  Hosts hosts = hosts_of(shape, 0);
  std::vector<int> places;  // the rank at each
  for (int l = 0; l < shape.ranks_per_host && !hosts.is_flat(); ++l)
    for (int h = 0; h < hosts.size; ++h)
      places.push_back(
          hosts.ranks[static_cast<std::size_t>(h * shape.ranks_per_host + l)]);
  std::vector<std::vector<int>> orders(2);
  for (int r = 0; r < ranks; ++r) orders[0].push_back(r);
  orders[1].assign(orders[0].rbegin(), orders[0].rend());
  if (!places.empty()) orders.push_back(places);
  std::vector<Pieces> result;
  for (const std::vector<int>& order : orders) {
    Pieces pieces(static_cast<std::size_t>(ranks));
    std::size_t offset = 0;
    std::size_t left = n;
    for (std::size_t i = 0; i < order.size(); ++i) {
      // Uneven ones, every third one empty.
      std::size_t size = i % 3 == 1 ? 0 : std::min(left, n / 3 + i);
      if (i + 1 == order.size()) size = left;
      pieces[static_cast<std::size_t>(order[i])] = {offset, size};
      offset += size;
      left -= size;
    }
    result.push_back(pieces);
  }
  return result;
}

class ByHost : public ::testing::TestWithParam<Shape> {
 protected:
  void run(const std::function<void(Communicator&)>& body) const {
    test::run_ranks(GetParam().group, [&](Communicator& comm) {
      const auto grouped = comm.by_host(hosts_of(GetParam(), comm.rank()));
      body(*grouped);
    });
  }

  void for_each_case(const std::function<void(Communicator&, DType, ReduceOp,
                                              std::size_t)>& body) const {
    run([&](Communicator& comm) {
      for (const DType dtype : test::kAllDTypes) {
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
          if (op == ReduceOp::kMean && !is_float(dtype)) continue;
          for (const std::size_t n : {0, 1, 7, 31, 32, 33, 1025}) {
            SCOPED_TRACE(std::string(to_string(dtype)) + " op " +
                         std::to_string(static_cast<int>(op)) + " n " +
                         std::to_string(n));
            body(comm, dtype, op, n);
          }
        }
      }
    });
  }
};

Buffer own_values(const Communicator& comm, DType dtype, std::size_t n) {
  return test::filled(
      dtype, n, [&](std::size_t i) { return value(dtype, comm.rank(), i); });
}

TEST_P(ByHost, AllReduceEqualsThePlainLoopBitForBit) {
  for_each_case(
      [](Communicator& comm, DType dtype, ReduceOp op, std::size_t n) {
        Buffer data = own_values(comm, dtype, n);
        comm.all_reduce(data.view(), op);
        const Buffer want = expected(GetParam(), dtype, dtype, op, n);
        EXPECT_TRUE(same_bytes(data.view(), want.view()));
      });
}

TEST_P(ByHost, ReduceScatterAcceptsPiecesInAnyOrder) {
  for_each_case([](Communicator& comm, DType dtype, ReduceOp op,
                   std::size_t n) {
    const Buffer want = expected(GetParam(), dtype, dtype, op, n);
    for (const Pieces& pieces : all_pieces(GetParam(), n)) {
      const Range own = pieces[static_cast<std::size_t>(comm.rank())];
      Buffer data = own_values(comm, dtype, n);
      Buffer output(own.size, dtype);
      comm.queue_reduce_scatter(data.view(), output.view(), pieces, op).wait();
      EXPECT_TRUE(
          same_bytes(output.view(), want.view().subview(own.offset, own.size)));
      const View place = data.view().subview(own.offset, own.size);
      comm.queue_reduce_scatter(data.view(), place, pieces, op)
          .wait();  // in place
      EXPECT_TRUE(same_bytes(place, output.view()));
    }
  });
}

TEST_P(ByHost, SumsOfHalvesMayStayUnrounded) {
  run([](Communicator& comm) {
    constexpr std::size_t kSize = 4097;
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
        const Buffer want =
            expected(GetParam(), dtype, DType::kFloat32, op, kSize);
        for (const Pieces& pieces : all_pieces(GetParam(), kSize)) {
          const Range own = pieces[static_cast<std::size_t>(comm.rank())];
          const Buffer data = own_values(comm, dtype, kSize);
          Buffer output(own.size, DType::kFloat32);
          comm.queue_reduce_scatter(data.view(), output.view(), pieces, op)
              .wait();
          EXPECT_TRUE(same_bytes(output.view(),
                                 want.view().subview(own.offset, own.size)));
        }
      }
    }
  });
}

TEST_P(ByHost, AllGatherAcceptsPiecesInAnyOrder) {
  run([](Communicator& comm) {
    for (const std::size_t n : {0, 1, 7, 33, 1025, 40000}) {
      const Buffer want = test::filled(DType::kInt32, n, [](std::size_t i) {
        return static_cast<double>(i + 1);
      });
      for (const Pieces& pieces : all_pieces(GetParam(), n)) {
        const Range own = pieces[static_cast<std::size_t>(comm.rank())];
        Buffer data(n, DType::kInt32);
        const ConstView mine = want.view().subview(own.offset, own.size);
        comm.queue_all_gather(mine, data.view(), pieces).wait();
        EXPECT_TRUE(same_bytes(data.view(), want.view()));
      }
    }
  });
}

// Whole multiples of the places, so that pieces are equal.
TEST_P(ByHost, SendsTheBytesOfTheFormulas) {
  const Shape& shape = GetParam();
  if (shape.ranks_per_host == 1) return;
  run([&](Communicator& comm) {
    const auto ranks = static_cast<std::uint64_t>(shape.group.world_size);
    const auto inner = static_cast<std::uint64_t>(shape.ranks_per_host);
    const std::uint64_t hosts = ranks / inner;
    const std::uint64_t n = 96 * ranks;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::uint64_t s = size_of(dtype);
      Buffer data = own_values(comm, dtype, n);
      const Counters before = comm.counters();
      comm.all_reduce(data.view());
      const Counters after = comm.counters();
      // Sums of hosts travel as they are added, results as they are.
      const std::uint64_t between = (hosts - 1) * 96 * (4 + s);
      const std::uint64_t sum_inside =
          hosts == 1 ? (ranks - 1) * 96 * s : (inner - 1) * (n / inner) * s;
      EXPECT_EQ(after.bytes_between_hosts - before.bytes_between_hosts,
                hosts == 1 ? 0 : between);
      EXPECT_EQ(after.bytes_sent - before.bytes_sent,
                (hosts == 1 ? 0 : between) + 2 * sum_inside);
      EXPECT_EQ(after.messages - before.messages,
                2 * (inner - 1) + 2 * (hosts - 1));
    }
  });
}

TEST_P(ByHost, LongArraysAreCutToFitTheScratchMemory) {
  const Shape& shape = GetParam();
  if (shape.group.world_size > 4 || shape.placing == Placing::kRoundRobin)
    return;
  run([&](Communicator& comm) {
    const std::size_t n = 2 * 1048576 * 2 + 12345;
    std::vector<float> data(n);
    for (std::size_t i = 0; i < n; ++i)
      data[i] = static_cast<float>((i * 7 + 1) % 1013) *
                static_cast<float>(comm.rank() + 1);
    comm.all_reduce(data);
    const float factor =
        static_cast<float>(comm.size() * (comm.size() + 1)) / 2;
    std::size_t wrong = 0;  // an assertion for each would take seconds
    for (std::size_t i = 0; i < n; ++i)
      if (data[i] != static_cast<float>((i * 7 + 1) % 1013) * factor) ++wrong;
    EXPECT_EQ(wrong, 0u);
  });
}

INSTANTIATE_TEST_SUITE_P(All, ByHost, ::testing::ValuesIn(shapes()), name_of);

}  // namespace
}  // namespace thinwire::comm::by_host_test
