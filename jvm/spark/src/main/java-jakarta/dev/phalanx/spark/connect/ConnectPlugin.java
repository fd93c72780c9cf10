package dev.phalanx.spark.connect;

import dev.phalanx.spark.internal.SparkInternals;
import dev.phalanx.spark.ways.Relays;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.spark.SparkContext;
import org.apache.spark.connect.proto.ExecutePlanResponse;
import org.apache.spark.sql.connect.planner.SparkConnectPlanner;
import org.apache.spark.sql.connect.plugin.CommandPlugin;
import org.apache.spark.sql.connect.service.ExecuteHolder;
import org.sparkproject.connect.protobuf.Any;
import org.sparkproject.connect.protobuf.ByteString;

/**
 * Phalanx's commands on a Spark Connect server, from Spark 4.0 on: the setting {@code
 * spark.connect.extensions.command.classes} names this class. They relay the connections of tasks that can't reach a
 * client, and tell a client how the scheduler has its stage.
 *
 * <p>All that touches Spark Connect's own classes is here, and only Spark Connect loads this class: not every Spark has
 * them.
 */
public final class ConnectPlugin implements CommandPlugin {
  /** Of a command to a relay, and of what answers it. As in python/phalanx/connect/server.py. */
  private static final String RELAY = "type.phalanx.dev/relay";

  /**
   * Of a question for a stage, by its job's tag, seats and profile, and of the answer: three numbers
   * with spaces between them.
   */
  private static final String STAGE = "type.phalanx.dev/stage";

  /** Made by Spark Connect. */
  public ConnectPlugin() {}

  @Override
  public boolean process(byte[] extension, SparkConnectPlanner planner) {
    Any command;
    try {
      command = Any.parseFrom(extension);
    } catch (IOException broken) {
      return false;
    }
    SparkContext context = planner.session().sparkContext();
    switch (command.getTypeUrl()) {
      case RELAY -> {
        String owner = planner.userId() + "/" + planner.sessionId();
        byte[] value = command.getValue().toByteArray();
        Relays.here().process(value, owner, context.getConf(), bytes -> answer(planner, RELAY, bytes));
      }
      case STAGE -> {
        String[] asked = command.getValue().toStringUtf8().split(" ");
        int[] look =
            SparkInternals.stageLook(
                context, asked[0], Integer.parseInt(asked[1]), Integer.parseInt(asked[2]));
        StringBuilder numbers = new StringBuilder(look[0] + " " + look[1] + " " + look[2]);
        for (long task : SparkInternals.leavingTasks(context, asked[0])) {
          numbers.append(' ').append(task);
        }
        answer(planner, STAGE, numbers.toString().getBytes(StandardCharsets.UTF_8));
      }
      default -> {
        return false;
      }
    }
    return true;
  }

  private static void answer(SparkConnectPlanner planner, String type, byte[] bytes) {
    ExecuteHolder holder = planner.executeHolderOpt().get();
    Any extension = Any.newBuilder().setTypeUrl(type).setValue(ByteString.copyFrom(bytes)).build();
    ExecutePlanResponse response =
        ExecutePlanResponse.newBuilder()
            .setSessionId(planner.sessionId())
            .setServerSideSessionId(planner.sessionHolder().serverSessionId())
            .setExtension(extension)
            .build();
    holder.responseObserver().onNext(response);
  }
}
