// ccl::allreduce of float32 or bfloat16, in place, over MPI.
#include <cstring>
#include <oneapi/ccl.hpp>

#include "timing.h"

int main(int count, char **words) {
  MPI_Init(&count, &words);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ccl::init();
  ccl::kvs::address_type address;
  ccl::shared_ptr_class<ccl::kvs> store;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank != 0) store = ccl::create_kvs(address);
  {
    auto group = ccl::create_communicator(ranks, rank, store);
    bool is_short = !strcmp(words[1], "bfloat16");
    auto type = is_short ? ccl::datatype::bfloat16 : ccl::datatype::float32;
    each_size(count, words, [&](void *buffer, size_t bytes) {
      ccl::allreduce(buffer, buffer, bytes / (is_short ? 2 : 4), type, ccl::reduction::sum, group).wait();
    });
  }
  MPI_Finalize();
}
