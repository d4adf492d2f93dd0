// SPDX-License-Identifier: Apache-2.0
#include "server/signals.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace headwise {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void BlockStopSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

SignalThread::SignalThread(std::function<void(int count)> on_signal)
    : on_signal_(std::move(on_signal)), thread_([this] { Run(); }) {}

SignalThread::~SignalThread() {
  stop_.store(true);
  pthread_kill(thread_.native_handle(), SIGTERM);  // wakes it; the signal is blocked, so no harm
  thread_.join();
}

void SignalThread::Run() {
  const sigset_t signals = StopSignals();
  for (int count = 1;; ++count) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (stop_.load()) return;
    on_signal_(count);
  }
}

}  // namespace headwise
