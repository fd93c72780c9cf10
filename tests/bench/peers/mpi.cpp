// MPI_Allreduce of float32, in place. MPI has no bfloat16.
#include "timing.h"

int main(int count, char **words) {
  MPI_Init(&count, &words);
  each_size(count, words, [](void *buffer, size_t bytes) {
    MPI_Allreduce(MPI_IN_PLACE, buffer, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  MPI_Finalize();
}
