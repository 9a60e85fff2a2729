// SPDX-License-Identifier: Apache-2.0
// A process group of torch.distributed for the test device, with the habits of
// NCCL and HCCL:
// * device tensors only, contiguous; work of its own stream, after the current
// one;
// * Work::wait() makes the current stream wait, not the host; with a time it
//   waits on the host, and throws what went wrong;
// * sums are formed backwards, so that nobody takes them for rank order.
// Bytes go through the store. A collective reads and sends when it is called;
// what it receives is written by its stream, so nobody sees it before a wait.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>

#include "operators.h"

namespace fence {
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using Tensors = std::vector<Tensor>;

struct CclWork final : Work {
  CclWork(int rank, c10d::OpType type, Device where, Event last,
          std::exception_ptr error)
      : Work(rank, type), device(where), end(std::move(last)) {
    exception_ = std::move(error);
    future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector{device});
  }
  bool isCompleted() override {
    const Lock lock(mutex);
    return exception_ || Guard().queryEvent(&end);
  }
  bool isSuccess() const override { return !exception_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    {
      const Lock lock(mutex);
      if (timeout == kNoTimeout) {
        fence::wait(current(device.index()), end);
      } else {
        ++counts[kHostWaits];
        reach(end);
      }
    }
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future;
  }
  Device device;
  Event end;
  Tensors kept;  // Until the work is gone, as TORCH_NCCL_AVOID_RECORD_STREAMS
                 // has it.
  c10::intrusive_ptr<c10::ivalue::Future> future;
};

class Ccl final : public c10d::Backend {
 public:
  Ccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
      std::chrono::milliseconds timeout)
      : Backend(rank, size), store_(std::move(store)), timeout_(timeout) {}
  const std::string getBackendName() const override { return "fence_ccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("fence_ccl", timeout_);
  }
  void abort() override { aborted_ = true; }

  WorkPtr allgather(std::vector<Tensors>& out, Tensors& in,
                    const c10d::AllgatherOptions&) override {
    std::vector<Message> messages;
    for (int peer = 0; peer < size_; ++peer)
      messages.insert(messages.end(),
                      {{in[0], peer, true}, {out[0][peer], peer, false}});
    return move(c10d::OpType::ALLGATHER, messages, {});
  }
  WorkPtr broadcast(Tensors& t,
                    const c10d::BroadcastOptions& options) override {
    std::vector<Message> messages;
    if (rank_ == options.rootRank) {
      for (int peer = 0; peer < size_; ++peer)
        messages.push_back({t[0], peer, true});
    }
    messages.push_back({t[0], static_cast<int>(options.rootRank), false});
    return move(c10d::OpType::BROADCAST, messages, {});
  }
  WorkPtr allreduce(Tensors& t,
                    const c10d::AllreduceOptions& options) override {
    std::vector<Message> messages;
    for (int peer = 0; peer < size_; ++peer)
      messages.insert(messages.end(),
                      {{t[0], peer, true}, {t[0], peer, false}});
    return move(c10d::OpType::ALLREDUCE, messages, sum(t[0], options.reduceOp));
  }
  WorkPtr reduce(Tensors& t, const c10d::ReduceOptions& options) override {
    const int root = static_cast<int>(options.rootRank);
    std::vector<Message> messages{{t[0], root, true}};
    if (rank_ != root) return move(c10d::OpType::REDUCE, messages, {});
    for (int peer = 0; peer < size_; ++peer)
      messages.push_back({t[0], peer, false});
    return move(c10d::OpType::REDUCE, messages, sum(t[0], options.reduceOp));
  }
  WorkPtr _allgather_base(Tensor& out, Tensor& in,
                          const c10d::AllgatherOptions&) override {
    std::vector<Message> messages;
    for (int peer = 0; peer < size_; ++peer)
      messages.insert(messages.end(),
                      {{in, peer, true}, {part(out, peer), peer, false}});
    return move(c10d::OpType::_ALLGATHER_BASE, messages, {});
  }
  WorkPtr _reduce_scatter_base(
      Tensor& out, Tensor& in,
      const c10d::ReduceScatterOptions& options) override {
    std::vector<Message> messages;
    for (int peer = 0; peer < size_; ++peer)
      messages.insert(messages.end(),
                      {{part(in, peer), peer, true}, {out, peer, false}});
    return move(c10d::OpType::_REDUCE_SCATTER_BASE, messages,
                sum(out, options.reduceOp));
  }
  WorkPtr alltoall_base(Tensor& out, Tensor& in,
                        std::vector<int64_t>& out_sizes,
                        std::vector<int64_t>& in_sizes,
                        const c10d::AllToAllOptions&) override {
    TORCH_CHECK(out_sizes.empty() && in_sizes.empty(),
                "fence_ccl: equal parts only");
    std::vector<Message> messages;
    for (int peer = 0; peer < size_; ++peer)
      messages.insert(messages.end(), {{part(in, peer), peer, true},
                                       {part(out, peer), peer, false}});
    return move(c10d::OpType::ALLTOALL_BASE, messages, {});
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    Tensors t{at::zeros({1}, Device(kFence, current_device))};
    return allreduce(t, {});
  }

 private:
  struct Message {
    Tensor tensor;
    int peer;
    bool sends;
  };
  [[nodiscard]] Tensor part(const Tensor& all, int peer) const {
    const int64_t each = all.size(0) / size_;
    return all.narrow(0, peer * each, each);
  }
  using Received = std::vector<Tensor>;  // On the host, in the messages' order.

  using Finish =
      std::function<std::vector<std::pair<Tensor, Tensor>>(Received&)>;
  Finish sum(const Tensor& out, const c10d::ReduceOp& op) const {
    TORCH_CHECK(op == c10d::ReduceOp::SUM, "fence_ccl: sums only");
    return [=, this](Received& all) {
      Tensor sum = all.back();  // Backwards.
      for (int peer = size_ - 2; peer >= 0; --peer) sum = sum + all[peer];
      return std::vector<std::pair<Tensor, Tensor>>{
          {out, sum.view(out.sizes())}};
    };
  }
  WorkPtr move(c10d::OpType type, std::vector<Message> messages,
               const Finish& finish) {
    const Device device = messages.at(0).tensor.device();
    for (const Message& m : messages) {
      TORCH_CHECK(is_on(m.tensor),
                  "fence_ccl: tensors must be on a fence device, got ",
                  m.tensor.device());
      TORCH_CHECK(m.tensor.is_contiguous(),
                  "fence_ccl: tensors must be contiguous");
      TORCH_CHECK(m.tensor.device() == device,
                  "fence_ccl: one device for each group");
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    Received received;
    std::exception_ptr error;
    Queue* queue;
    {
      const Lock lock(mutex);
      if (queue_ < 0) queue_ = Guard().getNewStream(device, 0).id();
      queue = &queue_at(queue_);
      wait(*queue, event_of(current(device.index())));
      run_all(*queue);
      for (const Message& m : messages) {
        if (!m.sends) continue;
        touch(*queue, m.tensor, false);
        put(*queue, [] {});
        run_all(*queue);
        const Tensor t = seen(m.tensor);
        const auto* bytes = static_cast<const uint8_t*>(t.const_data_ptr());
        try {
          TORCH_CHECK(!aborted_, "fence_ccl: aborted");
          store_->set(key(rank_, m.peer, sent_[m.peer]++),
                      std::vector<uint8_t>(bytes, bytes + t.nbytes()));
        } catch (...) {
          error = std::current_exception();
        }
      }
    }
    for (const Message& m :
         messages) {  // Without the lock: other ranks may be threads.
      if (m.sends || error) continue;
      const std::string name = key(m.peer, rank_, received_[m.peer]++);
      try {
        const auto end = std::chrono::steady_clock::now() + timeout_;
        while (!store_->check({name})) {
          TORCH_CHECK(!aborted_, "fence_ccl: aborted");
          TORCH_CHECK(std::chrono::steady_clock::now() < end,
                      "fence_ccl: timed out waiting for rank ", m.peer);
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        const std::vector<uint8_t> bytes = store_->get(name);
        store_->deleteKey(name);
        TORCH_CHECK(bytes.size() == m.tensor.nbytes(),
                    "fence_ccl: ", bytes.size(), " bytes from rank ", m.peer,
                    ", expected ", m.tensor.nbytes());
        Tensor t =
            at::empty(m.tensor.sizes(), m.tensor.options().device(at::kCPU));
        std::memcpy(t.mutable_data_ptr(), bytes.data(), bytes.size());
        received.push_back(t);
      } catch (...) {
        error = std::current_exception();
      }
    }
    const Lock lock(mutex);
    std::vector<std::pair<Tensor, Tensor>> results;
    if (error) {
    } else if (finish) {
      results = finish(received);
    } else {
      size_t next = 0;
      for (const Message& m : messages)
        if (!m.sends) results.emplace_back(m.tensor, received[next++]);
    }
    for (const auto& [to, value] : results) {
      touch(*queue, to, true);
      put(*queue, [to = seen(to), value = value] {
        at::AutoDispatchBelowADInplaceOrView inner;
        to.copy_(value);
      });
    }
    auto work = c10::make_intrusive<CclWork>(rank_, type, device,
                                             event_of(*queue), error);
    Tensors outputs;
    for (const Message& m : messages) {
      work->kept.push_back(m.tensor);
      if (!m.sends) outputs.push_back(m.tensor);
    }
    if (finish)
      outputs = {results.empty() ? messages[0].tensor : results[0].first};
    if (error) {
      work->future->setError(error);
    } else {
      const c10::StreamGuard on(Guard::stream(
          device, queue_));  // The future's event is of this stream.
      work->future->markCompleted(outputs);
    }
    return work;
  }
  static std::string key(int from, int to, int64_t sequence) {
    return c10::str("ccl/", from, "/", to, "/", sequence);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  std::map<int, int64_t> sent_, received_;
  int64_t queue_ = -1;
  std::atomic<bool> aborted_ = false;
};

}  // namespace fence
