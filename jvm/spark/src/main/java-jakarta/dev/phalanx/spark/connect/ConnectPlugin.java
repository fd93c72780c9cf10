package dev.phalanx.spark.connect;

import dev.phalanx.spark.ways.Relays;
import java.io.IOException;
import org.apache.spark.SparkConf;
import org.apache.spark.connect.proto.ExecutePlanResponse;
import org.apache.spark.sql.connect.planner.SparkConnectPlanner;
import org.apache.spark.sql.connect.plugin.CommandPlugin;
import org.apache.spark.sql.connect.service.ExecuteHolder;
import org.sparkproject.connect.protobuf.Any;
import org.sparkproject.connect.protobuf.ByteString;

/**
 * Phalanx's commands on a Spark Connect server, from Spark 4.0 on: the setting {@code
 * spark.connect.extensions.command.classes} names this class. They relay the connections of tasks that can't reach a
 * client.
 *
 * <p>All that touches Spark Connect's own classes is here, and only Spark Connect loads this class: not every Spark has
 * them.
 */
public final class ConnectPlugin implements CommandPlugin {
  /** Of a command, and of what answers it. As in python/phalanx/connect/relay_wire.py. */
  private static final String TYPE = "type.phalanx.dev/relay";

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
    if (!TYPE.equals(command.getTypeUrl())) {
      return false;
    }
    ExecuteHolder holder = planner.executeHolderOpt().get();
    SparkConf conf = planner.session().sparkContext().getConf();
    String owner = planner.userId() + "/" + planner.sessionId();
    Relays.here().process(command.getValue().toByteArray(), owner, conf, bytes -> answer(holder, planner, bytes));
    return true;
  }

  private static void answer(ExecuteHolder holder, SparkConnectPlanner planner, byte[] bytes) {
    Any extension = Any.newBuilder().setTypeUrl(TYPE).setValue(ByteString.copyFrom(bytes)).build();
    ExecutePlanResponse response =
        ExecutePlanResponse.newBuilder()
            .setSessionId(planner.sessionId())
            .setServerSideSessionId(planner.sessionHolder().serverSessionId())
            .setExtension(extension)
            .build();
    holder.responseObserver().onNext(response);
  }
}
